"""Train the bundled model on one GPU within a time limit, then evaluate and save its FP8 weights.

    train.py TOKENS_DIR OUT_DIR --seconds 468

Muon for the matrices, AdamW for the rest; bf16 compute with fp32 master weights; experts balanced by
nudging the selection bias; the last part of the run computes with FP8-rounded weights (straight-through).
"""

import argparse
import json
import lzma
import math
import os
import time

import numpy as np
import torch

from common import CONFIG, END_OF_TEXT, IM_START, dequantise, from_checkpoint, quantise, save_folder, to_checkpoint, write_json
from model import Model, export_weights, import_weights

START = time.time()
EVAL_WINDOW = 2048


def read_tokens(path, device):
    with lzma.open(path) as f:
        return torch.from_numpy(np.frombuffer(f.read(), dtype=np.uint16).astype(np.int16)).to(device)


def batches(data, rows, seq, seed):
    """Shuffled windows, the grid shifted at random each epoch."""
    rng = torch.Generator().manual_seed(seed)
    reach = torch.arange(seq + 1, device=data.device)
    while True:
        shift = int(torch.randint(seq, (1,), generator=rng))
        count = (len(data) - shift - 1) // seq
        starts = (torch.randperm(count, generator=rng) * seq + shift).to(data.device)
        for i in range(0, count - rows + 1, rows):
            w = data[starts[i:i + rows, None] + reach].long()
            yield w[:, :-1], w[:, 1:]


def conversations(data):
    """The documents that start with a chat turn."""
    start = data == END_OF_TEXT
    chat = data[start.nonzero()[:, 0] + 1] == IM_START
    return data[chat[start.cumsum(0) - 1]]


def mixed(data, rows, chat_rows, seq, seed):
    """Batches in which some rows hold conversations alone."""
    if not chat_rows:
        yield from batches(data, rows, seq, seed)
    for a, b in zip(batches(data, rows - chat_rows, seq, seed), batches(conversations(data), chat_rows, seq, seed + 1)):
        yield torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])


@torch.no_grad()
def heldout_loss(model, data, windows=None, rows=16):
    """Mean loss per token over consecutive windows."""
    model.eval()
    n = (len(data) - 1) // EVAL_WINDOW
    n, total = min(n, windows or n), 0.0
    for i in range(0, n, rows):
        r = min(rows, n - i)
        x = data[i * EVAL_WINDOW:(i + r) * EVAL_WINDOW].long().view(r, -1)
        y = data[i * EVAL_WINDOW + 1:(i + r) * EVAL_WINDOW + 1].long().view(r, -1)
        total += model(x, y).item() * r
    model.train()
    return total / n


def orthogonalise(g):
    """Newton-Schulz steps toward the nearest orthogonal matrix, for a stack [n, r, c]."""
    x = g.bfloat16()
    wide = x.shape[1] > x.shape[2]
    x = x.mT if wide else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in [(3.4445, -4.7750, 2.0315)] * 5:
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return (x.mT if wide else x).float()


class Optimiser:
    def __init__(self, model, args):
        self.args, self.step_count = args, 0
        self.param = dict(model.named_parameters())
        self.master = {n: p.detach().clone() for n, p in self.param.items()}
        self.fp8 = {n for n in self.param if n.endswith(("_proj.weight", "w13", "w2"))}
        self.shapes = {}
        for n in self.fp8:
            r, c = self.master[n].shape[-2:]
            r = c if n.endswith("w13") else r  # gate and up apart
            self.shapes.setdefault((r, c), []).append(n)
        self.adam = [n for n in self.param if n not in self.fp8]
        self.m = {n: torch.zeros_like(p) for n, p in self.master.items()}
        self.v = {n: torch.zeros_like(self.master[n]) for n in self.adam}
        for n, p in self.param.items():
            if p.dim() > 1 and n != "embed" and not n.endswith("gate"):
                p.data = p.data.bfloat16()

    @torch.no_grad()
    def step(self, scale, rounded):
        self.step_count += 1
        a = self.args
        for (r, c), names in self.shapes.items():
            grads = [self.param[n].grad.float().view(-1, r, c) for n in names]
            moms = [self.m[n].view(-1, r, c) for n in names]
            torch._foreach_lerp_(moms, grads, 1 - a.momentum)
            update = orthogonalise(torch.cat([g.lerp(m, a.momentum) for g, m in zip(grads, moms)]))
            lr = a.muon_lr * scale
            masters = [self.master[n].view(-1, r, c) for n in names]
            torch._foreach_mul_(masters, 1 - lr * a.decay)
            parts = torch.split(update, [len(m) for m in masters])
            torch._foreach_add_(masters, list(parts), alpha=-lr * max(1, r / c) ** 0.5)
        b1, b2 = 0.9, 0.95
        for n in self.adam:
            g, m, v = self.param[n].grad.float(), self.m[n], self.v[n]
            m.lerp_(g, 1 - b1)
            v.lerp_(g * g, 1 - b2)
            hat = (m / (1 - b1 ** self.step_count)) / ((v / (1 - b2 ** self.step_count)).sqrt() + 1e-10)
            lr = scale * (a.embed_lr if n == "embed" else a.adam_lr)
            if n in ("embed", "lm_head"):
                self.master[n].mul_(1 - lr * a.adam_decay)
            self.master[n].add_(hat, alpha=-lr)
        self.publish(rounded)

    @torch.no_grad()
    def publish(self, rounded):
        """Master weights -> compute weights, FP8-rounded ones late in the run."""
        for n, p in self.param.items():
            w = self.master[n]
            p.data.copy_(dequantise(*quantise(w)) if rounded and n in self.fp8 else w)
            p.grad = None


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("tokens")
    ap.add_argument("out")
    ap.add_argument("--seconds", type=float, default=468)
    ap.add_argument("--rows", type=int, default=32)
    ap.add_argument("--chat-rows", type=int, default=0, help="of these rows, how many hold conversations alone")
    ap.add_argument("--seq", type=int, default=4096)
    ap.add_argument("--muon-lr", type=float, default=0.02)
    ap.add_argument("--adam-lr", type=float, default=0.003)
    ap.add_argument("--embed-lr", type=float, default=0.01)
    ap.add_argument("--decay", type=float, default=0.1)
    ap.add_argument("--adam-decay", type=float, default=0.05)
    ap.add_argument("--momentum", type=float, default=0.95)
    ap.add_argument("--dropout", type=float, default=0.1)
    ap.add_argument("--balance", type=float, default=0.002)
    ap.add_argument("--round-from", type=float, default=0.85)
    ap.add_argument("--eval-every", type=float, default=45)
    ap.add_argument("--attention", choices=["any", "cudnn", "flash"], default="cudnn")
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.attention != "any":
        torch.backends.cuda.enable_cudnn_sdp(args.attention == "cudnn")
        torch.backends.cuda.enable_flash_sdp(args.attention == "flash")
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(device == "cpu")
    torch.manual_seed(args.seed)
    log_file = open(f"{args.out}/log.txt", "w")

    def log(*words):
        line = f"[{time.time() - START:6.1f}] " + " ".join(map(str, words))
        print(line, flush=True)
        print(line, file=log_file, flush=True)

    train, heldout = (read_tokens(f"{args.tokens}/{n}.bin.xz", device) for n in ("train", "heldout"))
    log("tokens", len(train), len(heldout))
    model = Model({**CONFIG, "dropout": args.dropout}).to(device)
    moe = [layer.moe for layer in model.layers]
    opt = Optimiser(model, args)
    parameters = sum(p.numel() for p in opt.master.values()) + sum(m.bias.numel() for m in moe)
    log("parameters", parameters)
    forward = model if args.no_compile else torch.compile(model)
    feed = mixed(train, args.rows, args.chat_rows, args.seq, args.seed)
    forward(*next(feed)).backward()  # compile before the clock of the schedule starts
    for p in opt.param.values():
        p.grad = None
    for m in moe:
        m.load.zero_()
    log("compiled")

    state = lambda n: opt.master[n] if n in opt.master else model.get_buffer(n)
    scored = Model(CONFIG).to(device)  # a second copy, to score the weights as they would be saved

    def saved_loss(dtype, windows=None):
        tensors = to_checkpoint(export_weights(state, CONFIG))
        import_weights(scored.float(), from_checkpoint(tensors))
        for n, p in scored.named_parameters():
            if p.dim() > 1 and n != "embed" and not n.endswith("gate"):
                p.data = p.data.to(dtype)
        return heldout_loss(scored, heldout, windows), tensors

    begin, steps, tokens = time.time(), 0, 0
    budget = args.seconds - (begin - START)
    next_eval, best, history, losses = args.eval_every, None, [], []
    marks = []
    while (p := (time.time() - begin) / budget) < 1:
        scale = min(1, (p + 1e-3) / 0.02) * min(1, (1 - p) / 0.75)
        x, y = next(feed)
        loss = forward(x, y)
        loss.backward()
        opt.step(scale, p > args.round_from)
        with torch.no_grad():
            for m in moe:
                m.bias.add_((m.load.mean() - m.load).sign(), alpha=args.balance * scale)
                m.load.zero_()
        steps, tokens = steps + 1, tokens + x.numel()
        losses.append(loss.detach())
        if device == "cuda":  # let the host run at most two steps ahead
            marks.append(torch.cuda.Event())
            marks[-1].record()
            if len(marks) > 2:
                marks.pop(0).synchronize()
        if time.time() - begin > next_eval:
            next_eval += args.eval_every
            score, tensors = saved_loss(torch.bfloat16, 100)
            mean = torch.stack(losses).mean().item()
            losses = []
            history.append({"step": steps, "seconds": round(time.time() - START, 1), "train_loss": round(mean, 4), "heldout_loss_fp8": round(score, 4)})
            log(f"step {steps} train {mean:.4f} heldout(fp8, part) {score:.4f} tokens/s {tokens / (time.time() - begin):.0f}")
            if best is None or score < best[0]:
                best = (score, tensors, steps)
    train_seconds = time.time() - begin
    tail = torch.stack(losses[-100:]).mean().item() if losses else math.nan

    score, tensors = saved_loss(torch.bfloat16, 100)
    log(f"end: step {steps} train {tail:.4f} heldout(fp8, part) {score:.4f}")
    if best and best[0] < score:
        log("an earlier checkpoint was better, at step", best[2])
        tensors = best[1]
    save_folder(tensors, args.out)
    torch.backends.cuda.enable_math_sdp(True)  # float32 from here on
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    import_weights(scored.float(), from_checkpoint(tensors))
    full = heldout_loss(scored, heldout, rows=8)
    part = heldout_loss(scored, heldout, 8, rows=8)
    unrounded = {n: t.detach().cpu().float() for n, t in export_weights(state, CONFIG).items()}
    import_weights(scored, unrounded)
    log("saved weights, float32:", full, "first 8 windows:", part)
    plain = heldout_loss(scored, heldout, rows=8)
    import_weights(scored, from_checkpoint(tensors))
    scored.train()
    for layer in scored.layers:
        layer.moe.load.zero_()
    with torch.no_grad():
        for i in range(0, min(len(heldout), 256 * EVAL_WINDOW) - EVAL_WINDOW, 8 * EVAL_WINDOW):
            w = heldout[i:i + 8 * EVAL_WINDOW]
            scored(w[:len(w) // EVAL_WINDOW * EVAL_WINDOW].long().view(-1, EVAL_WINDOW))
    load = [(layer.moe.load / layer.moe.load.sum()).tolist() for layer in scored.layers]
    write_json(f"{args.out}/training.json", {
        "parameters": parameters, "train_tokens": len(train), "heldout_tokens": len(heldout),
        "steps": steps, "tokens_seen": tokens, "epochs": round(tokens / len(train), 2),
        "tokens_per_second": round(tokens / train_seconds), "train_seconds": round(train_seconds, 1),
        "total_seconds": round(time.time() - START, 1), "final_train_loss": round(tail, 4),
        "heldout_window": EVAL_WINDOW, "heldout_loss": full, "heldout_loss_first_8_windows": part,
        "heldout_loss_before_fp8_rounding": plain,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", "torch": torch.__version__,
        "settings": {k: v for k, v in vars(args).items() if k not in ("tokens", "out")},
        "history": history,
        "expert_load_heldout": [[round(x, 4) for x in row] for row in load],
    })
    log("before rounding", plain, "load min/max", min(map(min, load)), max(map(max, load)))


main()
