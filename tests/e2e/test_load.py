"""Many streams at once, cancelled at random: nothing is left behind."""

import random
import threading

from server import RawConnection, Server, error_of, wait_until

STREAMS = 100


def run_stream(server, prompt, cancel_after, outcomes, index):
    """Reads a stream to its end, or closes it after some events."""
    with RawConnection(server, limit=120) as connection:
        connection.post("/v1/completions", {"prompt": prompt, "max_tokens": 24, "stream": True,
                                            "temperature": 0, "ignore_eos": True})
        if cancel_after is None:
            status, body = connection.read_response()
            outcomes[index] = status == 200 and body.endswith("data: [DONE]\n\n")
            return
        for _ in range(cancel_after):
            connection.read_until(b"data: ")
            connection.buffer = connection.buffer.split(b"data: ", 1)[1]
        outcomes[index] = True


def test_a_hundred_streams_with_random_cancels(server):
    rng = random.Random(11)
    outcomes = [None] * STREAMS
    threads = []
    for i in range(STREAMS):
        prompt = [rng.randrange(10, 4000) for _ in range(rng.randrange(1, 60))]
        cancel_after = rng.randrange(0, 10) if rng.random() < 0.5 else None
        threads.append(threading.Thread(target=run_stream,
                                        args=(server, prompt, cancel_after, outcomes, i)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert outcomes == [True] * STREAMS
    server.assert_drained()
    assert server.get("/health")[0] == 200


def test_a_full_queue_is_answered_with_429(model):
    with Server("--max-queued-requests", 2, "--max-decode-batch", 1, "--log-level", "warn",
                "--max-prefill-tokens", 256, "--max-model-len", 512) as server:
        body = {"prompt": "x", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with RawConnection(server, limit=60) as running:
            running.post("/v1/completions", body)
            running.read_until(b"data: ")
            queued = [RawConnection(server) for _ in range(2)]
            for connection in queued:
                connection.post("/v1/completions", body)
            wait_until(lambda: server.metrics()["num_requests_waiting"] == 2, 10, "waiting == 2")
            with RawConnection(server) as refused:
                refused.post("/v1/completions", body)
                refused.read_until(b"\r\n\r\n")
                assert b"Retry-After: " in refused.buffer
                status, answer = refused.read_response()
                assert status == 429 and error_of(answer)["type"] == "rate_limit_error"
            assert server.metrics()["requests_rejected_total"] == 1
            for connection in queued:
                connection.close()
            wait_until(lambda: server.metrics()["num_requests_waiting"] == 0, 10, "waiting == 0")
        server.assert_drained()
        assert server.stop() == 0
