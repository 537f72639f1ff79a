"""The verbs that need no server, and the command line itself."""

import json
import resource
import shutil
import subprocess

import pytest

from server import BINARY, MODEL, assert_one_clear_line, run_cli

GENERATE = ("generate", "--model", MODEL)


def test_help_and_version():
    code, out, _ = run_cli("--version")
    assert code == 0 and out.startswith("expertplex 0.")
    code, out, _ = run_cli("--help")
    assert code == 0 and "serve" in out and "Examples:" in out
    assert run_cli()[1] == out
    for verb in ("serve", "generate", "info"):
        code, out, _ = run_cli(verb, "--help")
        assert code == 0 and "Examples:" in out and "--model" in out


@pytest.mark.parametrize("arguments", [
    ("dance",), ("serve", "--port", "nine"), ("serve", "--port", "70000"), ("serve", "--frobnicate"),
    ("serve", "--preemption", "maybe"), ("serve", "--kv-cache-bytes", "many"),
    ("generate", "x", "--temperature", "7"), ("generate", "x", "--max-tokens", "0"),
    ("info", "--moe-servers", "1000"), ("serve", "--log-level", "loud"),
    ("serve", "--log-level", "trace"), ("serve", "--served-model-name", "--port", "0"),
    ("serve", "--generation-config", "maybe"), ("generate", "x", "--system", "Be kind"),
])
def test_wrong_command_lines(arguments):
    code, out, err = run_cli(*arguments, "--model", MODEL) if arguments != ("dance",) \
        else run_cli(*arguments)
    assert code == 2
    assert_one_clear_line(err)
    assert ("1000" in out) == (arguments[0] == "info")  # which shows what it can


def test_generate_is_deterministic_and_reads_stdin():
    code, out, err = run_cli(*GENERATE, "The history of", "--max-tokens", 12, "--ignore-eos")
    assert code == 0 and err == "" and len(out) > 1
    assert run_cli(*GENERATE, "--max-tokens", 12, "--ignore-eos", stdin="The history of")[1] == out


def test_one_newline_at_the_end_of_stdin_is_not_the_prompts():
    def answer(prompt):
        return run_cli(*GENERATE, "--max-tokens", 12, "--ignore-eos", stdin=prompt)[1]
    assert answer("The history of\n") == answer("The history of\r\n") == answer("The history of")
    assert answer("The history of\n\n") != answer("The history of")


def test_stop_takes_one_value_each():
    arguments = ("--max-tokens", 40, "--ignore-eos")
    whole = run_cli(*GENERATE, *arguments, "The history of")[1]
    stops = (whole[20:24], whole[10:13])
    code, out, err = run_cli(
        *GENERATE, *arguments, "--stop", stops[0], "--stop", stops[1], "The history of")
    assert code == 0, err
    assert out == whole[:min(map(whole.index, stops))] + "\n"


@pytest.mark.parametrize("verb", [("info",), ("info", "--json"), ("generate", "x")])
def test_stdout_that_cannot_be_written(verb):
    with open("/dev/full", "w") as full:
        done = subprocess.run([str(BINARY), *verb, "--model", str(MODEL)], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert_one_clear_line(done.stderr)
    assert "cannot write to stdout: No space left on device" in done.stderr


def test_generate_chat_with_stats():
    code, out, err = run_cli(*GENERATE, "--chat", "Hello", "--system", "Be kind", "--stats",
                             "--max-tokens", 8, "--temperature", 1, "--seed", 3)
    assert code == 0 and out
    assert "prompt " in err and "tokens/s" in err
    again = run_cli(*GENERATE, "--chat", "Hello", "--system", "Be kind", "--max-tokens", 8,
                    "--temperature", 1, "--seed", 3)
    assert again[1] == out


def test_generate_refuses_what_does_not_fit():
    code, out, err = run_cli(*GENERATE, "word " * 20_000)
    assert code == 2 and out == ""
    assert_one_clear_line(err)


def test_info_text():
    code, out, err = run_cli("info", "--model", MODEL)
    assert code == 0 and err == ""
    for word in ("MiniMaxM2ForCausalLM", "expert share", "KV cache", "MoE buffers", "weights"):
        assert word in out, out


def test_info_json():
    code, out, _ = run_cli("info", "--model", MODEL, "--json")
    assert code == 0
    info = json.loads(out)
    config = json.loads((MODEL / "config.json").read_text())
    assert info["layers"] == config["num_hidden_layers"]
    assert info["moe"]["experts"] == config["num_local_experts"]
    parameters = info["parameters"]
    assert 0 < parameters["routed_experts"] < parameters["total"]
    assert 0 < parameters["active_per_token"] < parameters["total"]
    assert parameters["expert_share"] == pytest.approx(
        parameters["routed_experts"] / parameters["total"])
    memory = info["memory"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    assert memory["kv_bytes_per_token"] % (2 * kv_size * config["num_hidden_layers"]) == 0
    assert memory["weights_bytes"] >= sum(
        path.stat().st_size for path in MODEL.glob("*.safetensors")) * 0.9
    assert memory["fits"]


@pytest.mark.parametrize("size, mebibytes", [("64M", 64), ("0.125GiB", 128), ("67108864", 64)])
def test_sizes(size, mebibytes):
    code, out, _ = run_cli("info", "--model", MODEL, "--json", "--kv-cache-bytes", size)
    assert code == 0
    # One prefill and one decode server, and some words beside the pages.
    assert json.loads(out)["memory"]["kv_bytes"] / 2**21 == pytest.approx(mebibytes, rel=0.02)


def test_what_does_not_fit_is_refused_with_the_arithmetic():
    arguments = ("--model", MODEL, "--kv-cache-bytes", "1M")
    code, out, info_err = run_cli("info", *arguments)
    assert code == 2 and "MiniMaxM2ForCausalLM" in out and "1.0 MiB" in out
    code, _, err = run_cli("serve", *arguments, "--log-level", "error", "--port", 0)
    assert code == 2
    assert_one_clear_line(err)
    assert "--kv-cache-bytes" in err and "1.0 MiB" in err
    assert err == info_err


@pytest.mark.parametrize("verb", [("info",), ("serve", "--port", 0, "--log-level", "error")])
def test_a_context_beyond_the_models(verb):
    context = json.loads((MODEL / "config.json").read_text())["max_position_embeddings"]
    code, _, err = run_cli(*verb, "--model", MODEL, "--max-model-len", 2 * context)
    assert code == 2
    assert_one_clear_line(err)
    assert f"--max-model-len: expected at most {context}, the model's context, got" in err


def test_directories_that_are_none(tmp_path):
    for given, word in ((MODEL / "config.json", "this is a file"),
                        ("someone/some-model", "nothing is downloaded")):
        code, _, err = run_cli("info", "--model", given)
        assert code == 2
        assert_one_clear_line(err)
        assert word in err


def test_models_beside_the_binary(tmp_path):
    shutil.copy(BINARY, tmp_path / "expertplex")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "expertplex-mini").symlink_to(MODEL)
    done = subprocess.run([tmp_path / "expertplex", "info", "--json"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["directory"] == str(tmp_path / "models" / "expertplex-mini")


def test_bundled_models_are_found(tmp_path):
    code, out, _ = run_cli("info", "--json", env={"EXPERTPLEX_MODELS": str(MODEL)})
    assert code == 0 and json.loads(out)["directory"].rstrip("/") == str(MODEL)
    (tmp_path / "expertplex-mini").symlink_to(MODEL)
    code, out, _ = run_cli("info", "--json", env={"EXPERTPLEX_MODELS": str(tmp_path)})
    assert code == 0 and json.loads(out)["model"] == "expertplex-mini"
    code, _, err = run_cli("info", "--model", "no-such-model")
    assert code == 2
    assert_one_clear_line(err)
    assert "no model 'no-such-model'" in err


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "", "5x", "86401"])
def test_drain_seconds_that_are_none(seconds):
    code, _, err = run_cli("serve", "--drain-seconds", seconds)
    assert code == 2
    assert_one_clear_line(err)
    assert "drain-seconds" in err


@pytest.mark.parametrize("mebibytes", [60, 210, 220, 230, 250, 270, 280, 290])
def test_too_little_memory_is_named(mebibytes):
    limit = mebibytes << 20
    result = subprocess.run(
        [BINARY, "generate", "x", "--max-tokens", "1"], capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert result.returncode in (0, 1), result.stderr
    if result.returncode == 1:
        assert_one_clear_line(result.stderr)
        assert "internal error" not in result.stderr
        assert "memory" in result.stderr, result.stderr
