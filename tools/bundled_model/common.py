"""Shape of the bundled model, its config files and its FP8 block checkpoint format."""

import json
import os

import torch

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
VOCAB = 4096
END_OF_TEXT, IM_START, IM_END, PAD = range(VOCAB - 4, VOCAB)
BLOCK = 128
FP8_MAX = 448.0
SHARD_BYTES = 13 * 1024 * 1024

CONFIG = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "attention_dropout": 0.0,
    "attn_type_list": [1] * 6,
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": IM_END,
    "pad_token_id": PAD,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "num_local_experts": 16,
    "output_router_logits": False,
    "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "rotary_dim": 64,
    "router_aux_loss_coef": 0.0,
    "router_jitter_noise": 0.0,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_mtp": False,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": VOCAB,
    "torch_dtype": "bfloat16",
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "float8_e4m3fn",
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"],
    },
}

GENERATION_CONFIG = {
    "bos_token_id": END_OF_TEXT,
    "eos_token_id": [IM_END, END_OF_TEXT],
    "pad_token_id": PAD,
    "do_sample": True,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
}

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role not in ['system', 'user', 'assistant'] %}"
    "{{- raise_exception('unknown role: ' + message.role) }}"
    "{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

TOKENIZER_CONFIG = {
    "added_tokens_decoder": {
        str(VOCAB - len(SPECIAL) + i): {
            "content": t, "lstrip": False, "normalized": False,
            "rstrip": False, "single_word": False, "special": True,
        } for i, t in enumerate(SPECIAL)
    },
    "add_bos_token": False,
    "add_prefix_space": False,
    "bos_token": "<|endoftext|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|pad|>",
    "unk_token": None,
    "chat_template": CHAT_TEMPLATE,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 4096,
    "tokenizer_class": "PreTrainedTokenizerFast",
}


def write_json(path, obj):
    with open(path, "w") as f:
        json.dump(obj, f, indent=2, ensure_ascii=False)
        f.write("\n")


def quantise(w):
    """fp32 [..., N, K] -> (e4m3 weight, fp32 multiplier [..., N/128, K/128])."""
    *b, n, k = w.shape
    blocks = w.float().reshape(*b, n // BLOCK, BLOCK, k // BLOCK, BLOCK)
    scale = (blocks.abs().amax(dim=(-3, -1), keepdim=True) / FP8_MAX).clamp_min(1e-12)
    q = (blocks / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return q.reshape(w.shape), scale.reshape(*b, n // BLOCK, k // BLOCK)


def dequantise(q, scale):
    *b, n, k = q.shape
    blocks = q.float().reshape(*b, n // BLOCK, BLOCK, k // BLOCK, BLOCK)
    return (blocks * scale[..., :, None, :, None]).reshape(*b, n, k)


def is_fp8(name):
    return name.endswith("_proj.weight") or ".experts." in name


def to_checkpoint(weights):
    """fp32 tensors under their on-disk names -> the tensors to save, in file order."""
    out = {}
    for name, w in weights.items():
        w = w.detach().cpu().float()
        if is_fp8(name):
            out[name], out[name + "_scale_inv"] = quantise(w)
        elif name.endswith(("gate.weight", "e_score_correction_bias")):
            out[name] = w.contiguous()
        else:
            out[name] = w.to(torch.bfloat16)
    return {k: v.contiguous() for k, v in out.items()}


def from_checkpoint(tensors):
    """The saved tensors -> fp32 tensors under the same names, scales folded in."""
    return {
        n: dequantise(t, tensors[n + "_scale_inv"]) if is_fp8(n) else t.float()
        for n, t in tensors.items() if not n.endswith("_scale_inv")
    }


def load_folder(folder):
    from safetensors.torch import load_file
    files = json.load(open(f"{folder}/model.safetensors.index.json"))["weight_map"].values()
    tensors = {}
    for f in sorted(set(files)):
        tensors.update(load_file(f"{folder}/{f}"))
    return tensors


def save_folder(tensors, folder):
    """Shards, index, config.json and generation_config.json."""
    from safetensors.torch import save_file
    os.makedirs(folder, exist_ok=True)
    size = lambda t: t.numel() * t.element_size()
    shards, used = [{}], 0
    for name, t in tensors.items():
        if used + size(t) > SHARD_BYTES and not name.endswith("_scale_inv"):
            shards.append({})
            used = 0
        shards[-1][name] = t
        used += size(t)
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, f"{folder}/{file}", metadata={"format": "pt"})
        os.chmod(f"{folder}/{file}", 0o644)
        weight_map.update({n: file for n in shard})
    total = sum(size(t) for t in tensors.values())
    write_json(f"{folder}/model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": weight_map})
    write_json(f"{folder}/config.json", CONFIG)
    write_json(f"{folder}/generation_config.json", GENERATION_CONFIG)
