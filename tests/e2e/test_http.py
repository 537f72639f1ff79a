"""Bytes that no client library would send, and the information routes."""

import json
import re

import pytest

from server import RawConnection, error_of, wait_until


def complete(**fields):
    return {"prompt": "x", "max_tokens": 2, "ignore_eos": True, **fields}


def test_information_routes(server):
    assert server.get("/health") == (200, "")
    assert server.get("/ready")[0] == 200
    assert re.fullmatch(r'\{"version":"\d+\.\d+\.\d+"\}', server.get("/version")[1])
    info = json.loads(server.get("/server_info")[1])
    assert info["served_model_names"] == ["expertplex-mini"] and info["max_model_len"] > 0
    assert json.loads(server.get("/get_server_info")[1])["max_model_len"] == info["max_model_len"]


def test_metrics_count_what_happened(server):
    before = server.metrics()
    assert server.post("/v1/completions", complete(max_tokens=5))[0] == 200
    assert server.post("/v1/completions", b"{")[0] == 400
    after = server.metrics()
    assert after["generation_tokens_total"] - before["generation_tokens_total"] == 5
    assert after["request_success_total"] - before["request_success_total"] == 1
    assert after["moe_tiles_total"] > before["moe_tiles_total"]
    assert after["e2e_request_latency_seconds_count"] > before["e2e_request_latency_seconds_count"]
    assert after["http_requests_total"] > before["http_requests_total"]


def test_prometheus_text_is_well_formed(server):
    server.post("/v1/completions", complete())
    families, last = {}, {}
    for line in server.get("/metrics")[1].splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            families[name] = kind
        elif not line.startswith("#"):
            match = re.fullmatch(r'([a-z0-9_:]+)(\{(?:[a-z_]+="[^"]*",?)*\})? (\S+)', line)
            assert match, line
            base = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert match[1] in families or families.get(base) == "histogram", line
            if match[1].endswith("_bucket"):
                series = match[1] + re.sub(r',?le="[^"]*"', "", match[2])
                assert float(match[3]) >= last.get(series, 0), line
                last[series] = float(match[3])
    for name, kind in families.items():
        assert name.startswith("expertplex:")
        if kind == "counter":
            assert name.endswith("_total"), name


@pytest.mark.parametrize("body, expected", [
    (b"{", "not valid JSON"),
    (b"", "not valid JSON"),
    (b"[1]", "expected a JSON object"),
    (b'{"prompt": "\xff\xfe"}', "not valid JSON"),
    (b'{"prompt": "\\ud800"}', ""),
    (b'{"prompt": 5}', "field 'prompt'"),
    (b'{"prompt": "x", "max_tokens": "many"}', "field 'max_tokens'"),
    (b'{"prompt": "x", "max_tokens": 1e300}', "field 'max_tokens'"),
    (b'{"prompt": [99999999]}', "field 'prompt'"),
    (b'{"prompt": ' + b"[" * 100_000, "nested"),
    (b'{"messages": [{"role": "user", "content": "x"}]}', "field 'prompt': missing"),
])
def test_bad_bodies_get_400(server, body, expected):
    status, answer = server.post("/v1/completions", body)
    assert status == 400, answer
    error = error_of(answer)
    assert expected in error["message"]
    assert error["type"] == "invalid_request_error"


def test_unknown_routes_and_methods(server):
    assert server.get("/nothing")[0] == 404
    status, answer = server.get("/v1/completions")
    assert status == 405 and error_of(answer)["code"] == "method_not_allowed"


def test_huge_body_gets_413_before_it_is_sent(server):
    with RawConnection(server) as connection:
        connection.send(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n")
        status, body = connection.read_response()
        assert status == 413 and "larger than" in error_of(body)["message"]


def test_huge_headers_get_431(server):
    with RawConnection(server) as connection:
        connection.send(b"GET /health HTTP/1.1\r\nX: " + b"x" * 100_000)
        assert connection.read_response()[0] == 431


def test_what_is_not_http_gets_400(server):
    with RawConnection(server) as connection:
        connection.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n")
        assert connection.read_response()[0] == 400
        assert connection.closed_by_peer()


def test_pipelined_requests_are_answered_in_order(server):
    with RawConnection(server, limit=60) as connection:
        for count in (3, 1, 2):
            connection.post("/v1/completions", complete(max_tokens=count))
            connection.send(b"GET /version HTTP/1.1\r\nHost: test\r\n\r\n")
        for count in (3, 1, 2):
            status, body = connection.read_response()
            assert status == 200
            assert json.loads(body)["usage"]["completion_tokens"] == count
            assert "version" in connection.read_response()[1]


def test_connections_cut_in_every_place(server):
    request = (b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Length: 60\r\n\r\n"
               b'{"prompt":"cut","max_tokens":500,"stream":true,"n":2}       ')
    for length in range(0, len(request) + 1, 8):
        with RawConnection(server) as connection:
            connection.send(request[:length])
    with RawConnection(server) as connection:
        connection.post("/v1/completions", complete(max_tokens=1000, stream=True))
        connection.read_until(b"data: ")
    server.assert_drained()
    assert server.get("/health")[0] == 200


def test_a_slow_sender_is_served(server):
    with RawConnection(server, limit=60) as connection:
        body = json.dumps(complete()).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for i in range(0, len(head + body), 7):
            connection.send((head + body)[i:i + 7])
        assert connection.read_response()[0] == 200


def test_a_slow_reader_gets_its_whole_stream(server):
    with RawConnection(server, limit=60, receive_buffer=2048) as connection:
        connection.post("/v1/completions", complete(max_tokens=300, stream=True))
        # The answer is complete in the server's and the kernel's buffers before it is read.
        wait_until(lambda: server.metrics()["num_requests_running"] == 0
                   and server.metrics()["generation_tokens_total"] > 0, 60, "the end of the stream")
        status, body = connection.read_response()
        assert status == 200 and body.endswith("data: [DONE]\n\n")


def test_expect_continue(server):
    body = json.dumps(complete()).encode()
    with RawConnection(server, limit=60) as connection:
        connection.send(f"POST /v1/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n"
                        "Expect: 100-continue\r\n\r\n")
        connection.read_until(b"100 Continue\r\n\r\n")
        connection.buffer = b""
        connection.send(body)
        assert connection.read_response()[0] == 200


def test_special_tokens_and_every_code_point_survive_tokenize(server):
    text = "a\u0000b é 中文 \U0001f600 <|im_end|>\n\t" + "".join(map(chr, range(0x20, 0x17F)))
    tokens = json.loads(server.post("/tokenize", {"prompt": text})[1])["tokens"]
    assert json.loads(server.post("/detokenize", {"tokens": tokens})[1])["prompt"] == text


def test_one_mebibyte_of_text_does_not_hold_up_a_stream(server):
    with RawConnection(server, limit=60) as connection:
        connection.post("/v1/completions", complete(max_tokens=100, stream=True))
        connection.read_until(b"data: ")
        status, answer = server.post("/v1/completions", complete(prompt="word " * 200_000))
        assert status == 400 and error_of(answer)["code"] == "context_length_exceeded"
        assert connection.read_response()[1].endswith("[DONE]\n\n")
