"""What a request may leave out, what is refused by name, and calls of several sequences."""

import json

import pytest

import checkpoint
from server import MODEL, Server, error_of, run_cli


def sampled(server, **fields):
    status, body = server.post("/v1/completions", {
        "prompt": "The history of", "max_tokens": 24, "seed": 3, "ignore_eos": True, **fields})
    assert status == 200, body
    return json.loads(body)["choices"][0]["text"]


def change_generation_config(directory, **fields):
    path = directory / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def default_sampling(server):
    return json.loads(server.get("/server_info")[1])["default_sampling_params"]


def test_sampling_defaults_are_the_models(server):
    recommended = json.loads((MODEL / "generation_config.json").read_text())
    wanted = {name: recommended[name] for name in ("temperature", "top_p", "top_k")}
    assert default_sampling(server) == wanted
    assert sampled(server) == sampled(server, **wanted)
    assert sampled(server) != sampled(server, temperature=1, top_p=1, top_k=-1)


def test_what_the_model_asks_for_in_vain_is_said_once(tmp_path):
    copy = checkpoint.copy_model(MODEL, tmp_path / "model")
    change_generation_config(copy, repetition_penalty=1.05, temperature=0)
    with Server("--log-level", "warn", model=copy) as server:
        assert default_sampling(server)["temperature"] == 0
        assert sampled(server) == sampled(server, temperature=0, seed=4)
        assert server.stop() == 0
        assert server.output.count("repetition_penalty 1.05") == 1


def test_generation_config_none_means_openais_defaults():
    with Server("--log-level", "warn", "--generation-config", "none") as server:
        assert default_sampling(server) == {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
        assert sampled(server) == sampled(server, temperature=1, top_p=1, top_k=-1)
        assert server.stop() == 0


def test_broken_generation_config(tmp_path):
    copy = checkpoint.copy_model(MODEL, tmp_path / "model")
    change_generation_config(copy, top_p=7)
    code, _, err = run_cli("serve", "--model", copy, "--port", 0, "--log-level", "error")
    assert code == 2
    assert "generation_config.json: field 'top_p': expected above 0 and at most 1, got 7" in err


@pytest.mark.parametrize("field, value", [
    ("guided_json", {"type": "object"}), ("guided_choice", ["a", "b"]), ("guided_regex", "a+"),
    ("guided_grammar", "root ::= x"), ("structured_outputs", {"json": {}}),
    ("return_token_ids", True), ("detokenize", False),
])
def test_fields_that_would_change_the_answer_are_refused(server, field, value):
    status, body = server.post("/v1/completions", {"prompt": "x", field: value})
    assert status == 400
    assert error_of(body)["param"] == field
    assert error_of(body)["code"] == "unsupported_parameter"


def test_unknown_fields_are_logged_once():
    with Server("--log-level", "warn") as server:
        for _ in range(2):
            body = {"prompt": "x", "max_tokens": 1, "temperatur": 0.3, "user": "u"}
            assert server.post("/v1/completions", body)[0] == 200
        assert server.stop() == 0
        assert server.output.count('"temperatur"') == 1
        assert server.output.count("a request has the field") == 1


def test_more_sequences_than_the_queue_holds():
    with Server("--log-level", "warn", "--max-queued-requests", 4) as server:
        body = {"prompt": ["a", "b", "c", "d", "e"], "max_tokens": 2}
        status, answer = server.post("/v1/completions", body)
        assert status == 400
        assert "this request makes 5 sequences, the queue holds 4" in error_of(answer)["message"]
        assert server.metrics()["generation_tokens_total"] == 0
        status, answer = server.post("/v1/completions", {**body, "prompt": ["a", "b"], "n": 2})
        assert status == 200 and len(json.loads(answer)["choices"]) == 4
        assert server.stop() == 0


def test_the_developer_role_works_like_system(server):
    def tokens(role):
        messages = [{"role": role, "content": "Be kind"}, {"role": "user", "content": "Hello"}]
        status, body = server.post("/tokenize", {"messages": messages})
        assert status == 200, body
        return json.loads(body)["tokens"]
    assert tokens("developer") == tokens("system") != tokens("user")


def test_null_content_is_not_called_missing(server):
    status, body = server.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": None}]})
    assert status == 400
    assert error_of(body)["message"] == ("field 'messages[0].content': expected a string or a list "
                                         "of text parts, got null")
