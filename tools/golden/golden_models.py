"""Tiny random models of both classes, in on-disk form, and what `transformers` computes with them."""

import json
import pathlib
import tempfile

import torch
import transformers
from safetensors.torch import save_file

from golden_tokenizers import write_model_tokenizer

VOCAB = 384
PROMPT_LENGTHS = [1, 7, 40]
GREEDY_TOKENS = 12
# No routing decision and no greedy choice of a golden run is closer than this.
ROUTING_MARGIN = 1e-4
GREEDY_MARGIN = 1e-3

SMALL = dict(layers=3, hidden=64, heads=4, kv_heads=2, head_dim=32, rotary=16, experts=8, top_k=3,
             intermediate=32)
TILED = dict(layers=2, hidden=256, heads=4, kv_heads=2, head_dim=64, rotary=32, experts=4, top_k=2,
             intermediate=128)

FP8_CONFIG = {
    "activation_scheme": "dynamic",
    "fmt": "float8_e4m3fn",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
}


def minimax_config(d):
    """As MiniMaxAI writes it (transformers 4 style: rope_theta and rotary_dim at the top level)."""
    return {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "attn_type_list": [1] * d["layers"],
        "bos_token_id": 380,
        "eos_token_id": 382,
        "head_dim": d["head_dim"],
        "hidden_act": "silu",
        "hidden_size": d["hidden"],
        "intermediate_size": d["intermediate"],
        "max_position_embeddings": 512,
        "num_attention_heads": d["heads"],
        "num_experts_per_tok": d["top_k"],
        "num_hidden_layers": d["layers"],
        "num_key_value_heads": d["kv_heads"],
        "num_local_experts": d["experts"],
        "qk_norm_type": "per_layer",
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000000,
        "rotary_dim": d["rotary"],
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "tie_word_embeddings": False,
        "use_qk_norm": True,
        "use_routing_bias": True,
        "vocab_size": VOCAB,
        "torch_dtype": "float32",
    }


def qwen_config(d, tied=False, renormalize=True):
    """As transformers 5 writes it (rope_parameters)."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "bos_token_id": 380,
        "decoder_sparse_step": 1,
        "eos_token_id": 382,
        "head_dim": d["head_dim"],
        "hidden_act": "silu",
        "hidden_size": d["hidden"],
        "intermediate_size": 2 * d["hidden"],
        "max_position_embeddings": 512,
        "max_window_layers": d["layers"],
        "mlp_only_layers": [],
        "moe_intermediate_size": d["intermediate"],
        "norm_topk_prob": renormalize,
        "num_attention_heads": d["heads"],
        "num_experts": d["experts"],
        "num_experts_per_tok": d["top_k"],
        "num_hidden_layers": d["layers"],
        "num_key_value_heads": d["kv_heads"],
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "use_sliding_window": False,
        "vocab_size": VOCAB,
        "dtype": "float32",
    }


def expert_names(config):
    if config["model_type"] == "minimax_m2":
        return "block_sparse_moe", ("w1", "w3", "w2")
    return "mlp", ("gate_proj", "up_proj", "down_proj")


def random_weights(config, d, generator):
    """On-disk names to float32 tensors; every norm and bias is far from its neutral value."""

    def normal(*shape, std):
        return torch.randn(*shape, generator=generator) * std

    def linear(out, into, gain=1.0):
        return normal(out, into, std=gain * into**-0.5)

    def norm(size):
        return 1.0 + normal(size, std=0.3)

    minimax = config["model_type"] == "minimax_m2"
    query, kv = d["heads"] * d["head_dim"], d["kv_heads"] * d["head_dim"]
    module, (gate, up, down) = expert_names(config)
    w = {"model.embed_tokens.weight": normal(VOCAB, d["hidden"], std=1.0)}
    for i in range(d["layers"]):
        p = f"model.layers.{i}."
        w[p + "input_layernorm.weight"] = norm(d["hidden"])
        w[p + "post_attention_layernorm.weight"] = norm(d["hidden"])
        w[p + "self_attn.q_proj.weight"] = linear(query, d["hidden"])
        w[p + "self_attn.k_proj.weight"] = linear(kv, d["hidden"])
        w[p + "self_attn.v_proj.weight"] = linear(kv, d["hidden"])
        w[p + "self_attn.o_proj.weight"] = linear(d["hidden"], query)
        w[p + "self_attn.q_norm.weight"] = norm(query if minimax else d["head_dim"])
        w[p + "self_attn.k_norm.weight"] = norm(kv if minimax else d["head_dim"])
        w[p + f"{module}.gate.weight"] = linear(d["experts"], d["hidden"], gain=1.5)
        if minimax:
            w[p + f"{module}.e_score_correction_bias"] = normal(d["experts"], std=0.2)
        for e in range(d["experts"]):
            x = p + f"{module}.experts.{e}."
            w[x + gate + ".weight"] = linear(d["intermediate"], d["hidden"], gain=1.5)
            w[x + up + ".weight"] = linear(d["intermediate"], d["hidden"])
            w[x + down + ".weight"] = linear(d["hidden"], d["intermediate"], gain=1.5)
    w["model.norm.weight"] = norm(d["hidden"])
    if not config["tie_word_embeddings"]:
        w["lm_head.weight"] = linear(VOCAB, d["hidden"], gain=2.0)
    return w


def is_fp8_matrix(name):
    return name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))


def quantize_fp8(weights, scale_type):
    """The stored tensors, and the float32 values that they stand for."""
    stored, values = {}, {}
    for name, w in weights.items():
        if not is_fp8_matrix(name):
            stored[name] = w if w.dim() == 1 or "gate" in name else w.bfloat16()
            values[name] = stored[name].float()
            continue
        n, k = w.shape
        assert n % 128 == 0 and k % 128 == 0, (name, w.shape)
        tiles = w.reshape(n // 128, 128, k // 128, 128)
        scale = tiles.abs().amax(dim=(1, 3)) / 448.0
        if scale_type == "e8m0":
            scale = torch.exp2(torch.ceil(torch.log2(scale)))
            stored_scale = scale.to(torch.float8_e8m0fnu)
        else:
            stored_scale = scale.to(scale_type)
        scale = stored_scale.float()
        code = (tiles / scale[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        stored[name] = code.reshape(n, k).contiguous()
        stored[name + "_scale_inv"] = stored_scale
        values[name] = (code.float() * scale[:, None, :, None]).reshape(n, k).contiguous()
    return stored, values


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_directory(path, config, tensors, shards=1):
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "config.json", config)
    write_json(path / "generation_config.json", {"bos_token_id": 380, "eos_token_id": [382, 380]})
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map, total = {}, 0
    for s in range(shards):
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        # Round robin, so that a layer's tensors lie in different shards.
        part = {name: tensors[name] for name in names[s::shards]}
        save_file(part, path / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in part})
        total += sum(t.numel() * t.element_size() for t in part.values())
    write_json(path / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})


class Recorder:
    """Hooks that keep what each layer and each router gave."""

    def __init__(self, model, config):
        self.hidden, self.routing = [], []
        self.minimax = config["model_type"] == "minimax_m2"
        for layer in model.model.layers:
            layer.register_forward_hook(lambda _m, _i, out: self.hidden.append(self.first(out)[0]))
            layer.mlp.gate.register_forward_hook(self.on_router)

    @staticmethod
    def first(out):
        return out[0] if isinstance(out, tuple) else out

    def on_router(self, _module, inputs, out):
        logits, weights, indices = out
        scores = logits.sigmoid() + inputs[1] if self.minimax else logits.softmax(-1)
        self.routing.append((scores, weights, indices))


def routing_margin(scores, top_k):
    best = scores.sort(-1, descending=True).values
    return (best[:, top_k - 1] - best[:, top_k]).min().item()


@torch.no_grad()
def reference(model, config, top_k, prompts):
    """The tensors of golden.safetensors, or None where a decision is too close to a tie."""
    recorder, golden = Recorder(model, config), {}
    for i, ids in enumerate(prompts):
        recorder.hidden.clear()
        recorder.routing.clear()
        out = model.model(input_ids=ids[None], use_cache=False)
        logits = model.lm_head(out.last_hidden_state)[0]
        indices, weights = [], []
        for scores, w, idx in recorder.routing:
            if routing_margin(scores, top_k) < ROUTING_MARGIN:
                return None
            order = idx.argsort(-1)
            indices.append(idx.gather(-1, order))
            weights.append(w.gather(-1, order))
        embedding = model.model.embed_tokens(ids)
        p = f"prompt.{i}."
        golden[p + "token_ids"] = ids
        golden[p + "hidden_states"] = torch.stack([embedding] + recorder.hidden)
        golden[p + "final_hidden"] = out.last_hidden_state[0]
        golden[p + "router_indices"] = torch.stack(indices)
        golden[p + "router_weights"] = torch.stack(weights).float()
        golden[p + "logits"] = logits
        greedy = greedy_continuation(model, ids)
        if greedy is None:
            return None
        golden[p + "greedy_ids"] = greedy
    return {name: t.contiguous().clone() for name, t in golden.items()}


def greedy_continuation(model, ids):
    ids, start = ids.clone(), len(ids)
    for _ in range(GREEDY_TOKENS):
        logits = model(input_ids=ids[None], use_cache=False).logits[0, -1]
        top = logits.topk(2)
        if (top.values[0] - top.values[1]).item() < GREEDY_MARGIN:
            return None
        ids = torch.cat([ids, top.indices[:1]])
    return ids[start:]


def load_reference(config, values):
    """Through from_pretrained, so that the on-disk names are checked by `transformers` itself."""
    config = {k: v for k, v in config.items() if k != "quantization_config"}
    if "rotary_dim" in config:
        # transformers 5.17 does not read rotary_dim, which is what MiniMaxAI's files and their own
        # implementation say.
        config["partial_rotary_factor"] = config["rotary_dim"] / config["head_dim"]
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory)
        write_directory(path, config, values)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], (kind, info[kind])
    if config["model_type"] == "minimax_m2":
        assert model.model.rotary_emb.inv_freq.numel() * 2 == config["rotary_dim"]
        bias = model.model.layers[0].mlp.e_score_correction_bias
        assert torch.equal(bias, values["model.layers.0.block_sparse_moe.e_score_correction_bias"])
    return model.eval()


def write_model(path, config, d, storage="f32", shards=1, scale_type=torch.float32):
    for seed in range(1, 100):
        generator = torch.Generator().manual_seed(seed)
        weights = random_weights(config, d, generator)
        if storage == "fp8":
            config["quantization_config"] = FP8_CONFIG
            config["torch_dtype"] = "bfloat16"
            stored, values = quantize_fp8(weights, scale_type)
        elif storage == "bf16":
            stored = {name: w.bfloat16() for name, w in weights.items()}
            values = {name: w.float() for name, w in stored.items()}
        else:
            stored = values = weights
        prompts = [torch.randint(0, 380, (n,), generator=generator) for n in PROMPT_LENGTHS]
        model = load_reference(config, values)
        golden = reference(model, config, d["top_k"], prompts)
        if golden is None:
            continue
        write_directory(path, config, stored, shards)
        write_model_tokenizer(path)
        save_file(golden, path / "golden.safetensors",
                  metadata={"seed": str(seed), "transformers": transformers.__version__})
        for file in path.iterdir():
            file.chmod(0o644)
        print(path.name, "seed", seed)
        return
    raise SystemExit(f"{path.name}: no seed without near ties")


def write_all(out):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    write_model(out / "minimax_m2", minimax_config(SMALL), SMALL)
    write_model(out / "qwen3_moe", qwen_config(SMALL), SMALL, shards=3)
    write_model(out / "minimax_m2_fp8", minimax_config(TILED), TILED, "fp8", shards=2)
    write_model(out / "qwen3_moe_fp8", qwen_config(TILED), TILED, "fp8", scale_type=torch.bfloat16)
    write_model(out / "minimax_m2_bf16", minimax_config(SMALL), SMALL, "bf16")
    write_model(out / "qwen3_moe_bf16_tied", qwen_config(SMALL, tied=True, renormalize=False), SMALL,
                "bf16")
