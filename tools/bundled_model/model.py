"""MiniMax-M2 for training: whole-projection q/k norm, partial rotary, sigmoid top-k experts.

Weights are kept under their on-disk names. Experts are stacked [E, ...] while training
(w13 = gate rows then up rows) and split by `export_weights`.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Gather(torch.autograd.Function):
    """x[perm] for a permutation; the gradient is a gather too, not a scatter."""

    @staticmethod
    def forward(ctx, x, perm, inverse):
        ctx.save_for_backward(inverse)
        return x[perm]

    @staticmethod
    def backward(ctx, g):
        return g[ctx.saved_tensors[0]], None, None


def grouped(x, w, offsets):
    """Rows of x, sorted by expert, times that expert's matrix [out, in]."""
    if x.dtype == torch.bfloat16:
        return F.grouped_mm(x, w.transpose(1, 2), offs=offsets)
    parts = torch.tensor_split(x, offsets.cpu().long()[:-1])
    return torch.cat([p @ m.T for p, m in zip(parts, w)])


def rms_norm(x, weight, eps):
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


def rotary(x, cos, sin):
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, d = c["hidden_size"], c["head_dim"]
        self.d, self.nq, self.nkv, self.eps = d, c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"]
        self.q_proj = nn.Linear(h, self.nq * d, bias=False)
        self.k_proj = nn.Linear(h, self.nkv * d, bias=False)
        self.v_proj = nn.Linear(h, self.nkv * d, bias=False)
        self.o_proj = nn.Linear(self.nq * d, h, bias=False)
        self.q_norm = nn.Parameter(torch.ones(self.nq * d))
        self.k_norm = nn.Parameter(torch.ones(self.nkv * d))

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = rms_norm(self.q_proj(x), self.q_norm, self.eps).view(b, t, self.nq, self.d).transpose(1, 2)
        k = rms_norm(self.k_proj(x), self.k_norm, self.eps).view(b, t, self.nkv, self.d).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.nkv, self.d).transpose(1, 2)
        q, k = rotary(q, cos, sin), rotary(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, self.nq * self.d))


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, i, e = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
        self.k, self.e = c["num_experts_per_tok"], e
        self.gate = nn.Parameter(torch.empty(e, h))
        self.w13 = nn.Parameter(torch.empty(e, 2 * i, h))
        self.w2 = nn.Parameter(torch.empty(e, h, i))
        self.register_buffer("bias", torch.zeros(e))
        self.register_buffer("load", torch.zeros(e), persistent=False)

    def forward(self, x):
        b, t, h = x.shape
        x = x.reshape(-1, h)
        score = torch.sigmoid(F.linear(x.float(), self.gate.float()))
        chosen = torch.topk(score.detach() + self.bias, self.k, dim=-1).indices
        weight = score.gather(1, chosen)
        weight = weight / weight.sum(-1, keepdim=True)
        ids = chosen.reshape(-1)
        order = torch.argsort(ids, stable=True)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        counts = (ids[None, :] == torch.arange(self.e, device=ids.device)[:, None]).sum(1)
        if self.training:
            self.load.add_(counts.float())
        offsets = counts.cumsum(0).to(torch.int32)
        xs = Gather.apply(x[:, None, :].expand(-1, self.k, -1).reshape(-1, h), order, inverse)
        g, u = grouped(xs, self.w13, offsets).chunk(2, dim=-1)
        ys = grouped(F.silu(g) * u, self.w2, offsets)
        y = Gather.apply(ys, inverse, order).view(-1, self.k, h)
        return (y * weight[..., None].to(y.dtype)).sum(1).view(b, t, h)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = nn.Parameter(torch.ones(c["hidden_size"]))
        self.post_attention_layernorm = nn.Parameter(torch.ones(c["hidden_size"]))
        self.self_attn, self.moe = Attention(c), Experts(c)
        self.eps, self.drop = c["rms_norm_eps"], c.get("dropout", 0.0)

    def forward(self, x, cos, sin):
        y = self.self_attn(rms_norm(x, self.input_layernorm, self.eps), cos, sin)
        x = x + F.dropout(y, self.drop, self.training)
        y = self.moe(rms_norm(x, self.post_attention_layernorm, self.eps))
        return x + F.dropout(y, self.drop, self.training)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.embed = nn.Parameter(torch.empty(c["vocab_size"], c["hidden_size"]))
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(c["hidden_size"]))
        self.lm_head = nn.Parameter(torch.empty(c["vocab_size"], c["hidden_size"]))
        depth = (2 * c["num_hidden_layers"]) ** -0.5
        for name, p in self.named_parameters():
            if p.dim() > 1:
                std = {"embed": 0.5, "lm_head": 0.005}.get(name, p.shape[-1] ** -0.5 * 0.6)
                nn.init.normal_(p, std=std * depth if name.endswith(("o_proj.weight", "w2")) else std)

    def tables(self, t, device, dtype):
        r = self.c["rotary_dim"]
        inv = self.c["rope_theta"] ** (-torch.arange(0, r, 2, device=device, dtype=torch.float32) / r)
        angle = torch.arange(t, device=device, dtype=torch.float32)[:, None] * inv
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def forward(self, ids, targets=None):
        x = F.embedding(ids, self.embed).to(self.lm_head.dtype)
        x = F.dropout(x, self.c.get("dropout", 0.0), self.training)
        cos, sin = self.tables(ids.shape[1], ids.device, x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        x = rms_norm(x, self.norm, self.c["rms_norm_eps"])
        logits = F.linear(x, self.lm_head)
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="mean")


def export_weights(get, c):
    """Name -> tensor on disk order; get(name) returns a training tensor by its module name."""
    i = c["intermediate_size"]
    out = {"model.embed_tokens.weight": get("embed")}
    for n in range(c["num_hidden_layers"]):
        s, d = f"layers.{n}.", f"model.layers.{n}."
        for p in "qkvo":
            out[d + f"self_attn.{p}_proj.weight"] = get(s + f"self_attn.{p}_proj.weight")
        out[d + "self_attn.q_norm.weight"] = get(s + "self_attn.q_norm")
        out[d + "self_attn.k_norm.weight"] = get(s + "self_attn.k_norm")
        out[d + "input_layernorm.weight"] = get(s + "input_layernorm")
        out[d + "post_attention_layernorm.weight"] = get(s + "post_attention_layernorm")
        m = d + "block_sparse_moe."
        out[m + "gate.weight"] = get(s + "moe.gate")
        out[m + "e_score_correction_bias"] = get(s + "moe.bias")
        w13, w2 = get(s + "moe.w13"), get(s + "moe.w2")
        for e in range(c["num_local_experts"]):
            out[m + f"experts.{e}.w1.weight"] = w13[e, :i]
            out[m + f"experts.{e}.w2.weight"] = w2[e]
            out[m + f"experts.{e}.w3.weight"] = w13[e, i:]
    out["model.norm.weight"] = get("norm")
    out["lm_head.weight"] = get("lm_head")
    return out


def import_weights(model, w):
    """The reverse of export_weights, for evaluating saved weights."""
    c = model.c
    state = {"embed": w["model.embed_tokens.weight"], "norm": w["model.norm.weight"], "lm_head": w["lm_head.weight"]}
    for n in range(c["num_hidden_layers"]):
        s, d = f"layers.{n}.", f"model.layers.{n}."
        m = d + "block_sparse_moe."
        for p in "qkvo":
            state[s + f"self_attn.{p}_proj.weight"] = w[d + f"self_attn.{p}_proj.weight"]
        for p in ("self_attn.q_norm", "self_attn.k_norm", "input_layernorm", "post_attention_layernorm"):
            state[s + p] = w[d + p + ".weight"]
        state[s + "moe.gate"], state[s + "moe.bias"] = w[m + "gate.weight"], w[m + "e_score_correction_bias"]
        e = range(c["num_local_experts"])
        state[s + "moe.w13"] = torch.stack([torch.cat([w[m + f"experts.{i}.w1.weight"], w[m + f"experts.{i}.w3.weight"]]) for i in e])
        state[s + "moe.w2"] = torch.stack([w[m + f"experts.{i}.w2.weight"] for i in e])
    model.load_state_dict({k: v.to(model.embed.device) for k, v in state.items()})
