"""Check the saved model with the `transformers` implementation in float32 on the CPU.

    verify.py MODEL_DIR TOKENS_DIR [--golden FILE]

Compares the held-out loss on the first 8 windows with training.json, prints samples, and can write
greedy continuations with their top-2 logit margins for the C++ tests.
"""

import argparse
import json
import lzma
import os

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoTokenizer, MiniMaxM2Config, MiniMaxM2ForCausalLM

from common import CONFIG, from_checkpoint, load_folder, write_json

WINDOW = 2048
PLAIN = ["The history of", "The operating system", "In the beginning", "To install the package, run"]
CHAT = ["What is a compiler?", "Hello", "What does the word \"river\" mean?", "Tell me about Unix."]


def load(folder):
    c = json.load(open(f"{folder}/config.json"))
    keep = {k: c[k] for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                              "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
                              "tie_word_embeddings", "num_experts_per_tok", "num_local_experts",
                              "bos_token_id", "eos_token_id", "pad_token_id")}
    config = MiniMaxM2Config(**keep, attn_implementation="eager", rope_parameters={
        "rope_type": "default", "rope_theta": c["rope_theta"], "partial_rotary_factor": c["rotary_dim"] / c["head_dim"]})
    model = MiniMaxM2ForCausalLM(config).float().eval()
    w, state = from_checkpoint(load_folder(folder)), {}
    for name, t in w.items():
        if ".experts." not in name:
            state[name.replace("block_sparse_moe", "mlp")] = t
    for n in range(c["num_hidden_layers"]):
        m = f"model.layers.{n}.block_sparse_moe.experts."
        e = range(c["num_local_experts"])
        state[f"model.layers.{n}.mlp.experts.gate_up_proj"] = torch.stack([torch.cat([w[f"{m}{i}.w1.weight"], w[f"{m}{i}.w3.weight"]]) for i in e])
        state[f"model.layers.{n}.mlp.experts.down_proj"] = torch.stack([w[f"{m}{i}.w2.weight"] for i in e])
    model.load_state_dict(state, strict=True)
    return model


@torch.no_grad()
def greedy(model, ids, count):
    """Greedy tokens and the gap between the two largest logits at each step."""
    out, margins, cache = [], [], None
    feed = torch.tensor([ids])
    for _ in range(count):
        r = model(feed, past_key_values=cache, use_cache=True)
        cache = r.past_key_values
        top = r.logits[0, -1].float().topk(2)
        out.append(int(top.indices[0]))
        margins.append(round(float(top.values[0] - top.values[1]), 5))
        feed = torch.tensor([[out[-1]]])
    return out, margins


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("folder")
    ap.add_argument("tokens")
    ap.add_argument("--golden")
    args = ap.parse_args()
    model, tok = load(args.folder), Tokenizer.from_file(f"{args.folder}/tokenizer.json")
    hf = AutoTokenizer.from_pretrained(args.folder)
    print("parameters", sum(p.numel() for p in model.state_dict().values()))
    with lzma.open(f"{args.tokens}/heldout.bin.xz") as f:
        data = torch.from_numpy(np.frombuffer(f.read(2 * (8 * WINDOW + 1)), dtype=np.uint16).astype(np.int64))
    with torch.no_grad():
        losses = [F.cross_entropy(model(data[i:i + WINDOW][None]).logits[0], data[i + 1:i + WINDOW + 1]).item()
                  for i in range(0, 8 * WINDOW, WINDOW)]
    loss = sum(losses) / len(losses)
    print("held-out loss, first 8 windows, transformers float32:", loss)
    if os.path.exists(f"{args.folder}/training.json"):
        expected = json.load(open(f"{args.folder}/training.json"))["heldout_loss_first_8_windows"]
        print("training.json says", expected)
        assert abs(loss / expected - 1) < .01
    golden = []
    for kind, text in [("completion", t) for t in PLAIN] + [("chat", t) for t in CHAT]:
        prompt = text if kind == "completion" else hf.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        ids = tok.encode(prompt).ids
        assert ids == hf(prompt)["input_ids"]
        out, margins = greedy(model, ids, 32)
        golden.append({"kind": kind, "text": text, "prompt": prompt, "prompt_ids": ids, "greedy_ids": out,
                       "greedy_text": tok.decode(out, skip_special_tokens=False), "top2_margin": margins})
        torch.manual_seed(0)
        sample = model.generate(torch.tensor([ids]), max_new_tokens=80, do_sample=True, temperature=0.7, top_p=0.9, top_k=40,
                                eos_token_id=CONFIG["eos_token_id"], pad_token_id=CONFIG["pad_token_id"])[0, len(ids):].tolist()
        print(f"--- {text}\ngreedy:  {golden[-1]['greedy_text']!r}\nsampled: {tok.decode(sample, skip_special_tokens=False)!r}")
    if args.golden:
        chosen = golden[:3] + golden[4:6]
        write_json(args.golden, {"model": "models/expertplex-mini", "precision": "float32, dequantised weights, eager attention",
                                 "note": "compare tokens up to the first step whose top2_margin is small; greedy_ids run on past end-of-turn tokens",
                                 "prompts": chosen})


main()
