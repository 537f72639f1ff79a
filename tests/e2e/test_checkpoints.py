"""Broken model directories through the command line: one clear line, exit code 2, nothing guessed."""

import json
import os

import pytest

import checkpoint
from server import MODEL, assert_one_clear_line, run_cli


@pytest.fixture
def copy(tmp_path):
    return checkpoint.copy_model(MODEL, tmp_path / "model")


def refused(directory, *words, verb="info"):
    arguments = [verb, "--model", directory, "--log-level", "error"]
    if verb == "serve":
        arguments += ["--port", 0]
    code, _, err = run_cli(*arguments)
    assert code == 2, err
    assert_one_clear_line(err)
    for word in words:
        assert word in err, err


def change_config(directory, **fields):
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("verb", ["info", "serve", "generate"])
def test_truncated_shard(copy, verb):
    path = sorted(copy.glob("*.safetensors"))[-1]
    path.write_bytes(path.read_bytes()[:-1000])
    if verb == "generate":
        code, out, err = run_cli("generate", "x", "--model", copy)
        assert code == 2 and out == ""
        assert_one_clear_line(err)
    else:
        refused(copy, path.name, verb=verb)


@pytest.mark.parametrize("ending", [
    "self_attn.q_proj.weight", "experts.3.w1.weight", "input_layernorm.weight", "lm_head.weight"])
def test_missing_tensor(copy, ending):
    path, tensors, name = checkpoint.shard_of(copy, ending)
    del tensors[name]
    checkpoint.write(path, tensors)
    checkpoint.forget_in_index(copy, name)
    refused(copy, name)


def test_missing_scale(copy):
    path, tensors, name = checkpoint.shard_of(copy, "weight_scale_inv")
    del tensors[name]
    checkpoint.write(path, tensors)
    checkpoint.forget_in_index(copy, name)
    refused(copy, name)


def test_wrong_shape(copy):
    path, tensors, name = checkpoint.shard_of(copy, "self_attn.k_proj.weight")
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, [shape[0] // 2, shape[1] * 2], data)
    checkpoint.write(path, tensors)
    refused(copy, name, str(shape[0]), str(shape[0] // 2))


def test_wrong_type(copy):
    path, tensors, name = checkpoint.shard_of(copy, "input_layernorm.weight")
    _, shape, _ = tensors[name]
    tensors[name] = ("I64", shape, bytes(8 * shape[0]))
    checkpoint.write(path, tensors)
    refused(copy, name, "I64")


def test_unknown_architecture(copy):
    change_config(copy, architectures=["LlamaForCausalLM"], model_type="llama")
    refused(copy, "config.json", "LlamaForCausalLM", "MiniMaxM2ForCausalLM")


def test_wrong_sizes_in_the_config(copy):
    change_config(copy, hidden_size=512)
    refused(copy, "512")


def test_config_that_is_not_json(copy):
    (copy / "config.json").write_text("{")
    refused(copy, "config.json")


def test_header_of_garbage(copy):
    path = sorted(copy.glob("*.safetensors"))[0]
    data = bytearray(path.read_bytes())
    data[:8] = b"\xff" * 8
    path.write_bytes(bytes(data))
    refused(copy, path.name)


def test_missing_shard(copy):
    path = sorted(copy.glob("*.safetensors"))[-1]
    path.unlink()
    refused(copy, ".safetensors")


def test_missing_tokenizer(copy):
    (copy / "tokenizer.json").unlink()
    refused(copy, "tokenizer.json")


def test_missing_directory(tmp_path):
    refused(tmp_path / "nothing", "no such model directory")
    refused(tmp_path, "no config.json")


@pytest.mark.parametrize("name", [
    "tokenizer.json", "tokenizer_config.json", "generation_config.json",
    "model.safetensors.index.json", "chat_template.jinja", "shard"])
def test_pipes_in_place_of_files(copy, name):
    if name == "model.safetensors.index.json" and not (copy / name).exists():
        name = "model.safetensors"
    path = sorted(copy.glob("*.safetensors"))[-1] if name == "shard" else copy / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    refused(copy, path.name, "expected a regular file, got a pipe", verb="serve")


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_links_in_a_circle_are_not_taken_for_absent_files(copy, name):
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(name)
    refused(copy, name, "cannot open", verb="serve")


def test_long_values_are_shortened(copy):
    change_config(copy, hidden_act="x" * 100_000)
    code, _, err = run_cli("info", "--model", copy)
    assert code == 2 and len(err) < 1000, len(err)
