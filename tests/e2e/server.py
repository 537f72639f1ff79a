"""The real binary in a child process, and small clients for it. Every wait has a limit."""

import contextlib
import json
import os
import pathlib
import re
import selectors
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("EXPERTPLEX_BINARY", ROOT / "build" / "expertplex"))
MODEL = pathlib.Path(os.environ.get("EXPERTPLEX_TEST_MODEL", ROOT / "models" / "expertplex-mini"))

START_LIMIT = 60  # seconds; the test of readiness has a limit of its own
POLL_INTERVAL = 0.02


def wait_until(condition, limit=10.0, what="the condition"):
    """Calls `condition` until it returns something true, and returns that."""
    until = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"{what} did not come true within {limit} s"
        time.sleep(POLL_INTERVAL)


def run_cli(*arguments, stdin="", limit=60, env=None):
    """Runs the binary to its end; returns (exit code, stdout, stderr)."""
    done = subprocess.run(
        [str(BINARY), *map(str, arguments)], input=stdin, capture_output=True, text=True,
        timeout=limit, env={**os.environ, **(env or {})}, errors="replace")
    return done.returncode, done.stdout, done.stderr


def assert_one_clear_line(stderr):
    """One line, no traces of a crash."""
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("expertplex: error: "), stderr
    for word in ("terminate", "what():", "exception", "Traceback", "Aborted", "check failed"):
        assert word not in stderr, stderr


class Server:
    """`expertplex serve` on a port of its own choice."""

    def __init__(self, *arguments, model=MODEL, ready=True, port=0):
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            [str(BINARY), "serve", "--model", str(model), "--port", str(port), *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.output = ""
        self.host = "127.0.0.1"
        self.port = None
        if ready:
            self.wait_for_url()
            wait_until(lambda: self.get("/health")[0] == 200, START_LIMIT, "/health")
            self.ready_after = time.monotonic() - self.started_at

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def wait_for_url(self):
        """Reads the output until the URL has been printed."""
        def announced():
            return re.search(r"http://127\.0\.0\.1:(\d+)\n", self.output)
        self.read_output(announced, START_LIMIT)
        assert announced(), f"the server did not come up:\n{self.output}"
        self.port = int(announced()[1])

    def read_output(self, enough=lambda: False, limit=10.0):
        """Collects output until `enough()`, the end of the output, or the limit."""
        until = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not enough() and time.monotonic() < until:
                if not selector.select(max(0.0, until - time.monotonic())):
                    break
                data = os.read(self.process.stdout.fileno(), 65536)
                if not data:
                    break
                self.output += data.decode(errors="replace")

    def get(self, path, limit=10.0):
        """(status, body)"""
        return self._request(urllib.request.Request(self.url + path), limit)

    def post(self, path, body, limit=60.0):
        """(status, body); `body` is JSON or raw bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"Content-Type": "application/json"})
        return self._request(request, limit)

    @staticmethod
    def _request(request, limit):
        try:
            with urllib.request.urlopen(request, timeout=limit) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        """{name: sum over its samples}, for families without buckets."""
        sums = {}
        for line in self.get("/metrics")[1].splitlines():
            match = re.match(r"expertplex:(\w+)(\{.*\})? (\S+)$", line)
            if match and not match[1].endswith("_bucket"):
                sums[match[1]] = sums.get(match[1], 0.0) + float(match[3])
        return sums

    def assert_drained(self, limit=20.0):
        """Nothing is held any more: no requests, no pages, no handoff slots."""
        gauges = ("num_requests_running", "num_requests_waiting", "kv_pages_used",
                  "handoff_slots_used")
        def held():
            metrics = self.metrics()
            return {name: metrics[name] for name in gauges if metrics[name] != 0}
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not held(), limit)
        assert not held()

    def thread_count(self):
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, limit=30.0):
        """Reads the rest of the output and returns the exit code."""
        self.read_output(limit=limit)
        return self.process.wait(limit)

    def stop(self):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.wait()
        finally:
            self.kill()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class RawConnection:
    """A socket that sends the bytes it is told to."""

    def __init__(self, server, limit=10.0, receive_buffer=None):
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(limit)
        self.socket.connect((server.host, server.port))
        self.buffer = b""

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def post(self, path, body, headers=""):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\n{headers}\r\n")
        self.send(head.encode() + data)

    def read_until(self, text):
        while text not in self.buffer:
            data = self.socket.recv(65536)
            assert data, f"closed before {text!r}; got {self.buffer!r}"
            self.buffer += data

    def read_response(self):
        """(status, body); chunked bodies are joined."""
        self.read_until(b"\r\n\r\n")
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        status = int(head.split()[1])
        length = re.search(rb"(?i)content-length: (\d+)", head)
        body = b""
        if length:
            size = int(length[1])
            while len(self.buffer) < size:
                data = self.socket.recv(65536)
                assert data, "closed in the middle of a body"
                self.buffer += data
            body, self.buffer = self.buffer[:size], self.buffer[size:]
        elif b"chunked" in head:
            while True:
                self.read_until(b"\r\n")
                size_text, self.buffer = self.buffer.split(b"\r\n", 1)
                size = int(size_text, 16)
                while len(self.buffer) < size + 2:
                    self.buffer += self.socket.recv(65536)
                body, self.buffer = body + self.buffer[:size], self.buffer[size + 2:]
                if size == 0:
                    break
        return status, body.decode()

    def closed_by_peer(self):
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def error_of(body):
    """The error object of an answer, whose shape is checked."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    return error
