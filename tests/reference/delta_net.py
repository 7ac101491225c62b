"""The gated delta net of Qwen3-Next and Qwen4, one token after the other."""
import numpy as np
from common import rms, sigmoid, silu, softplus


def convolved(x, taps, dilation=1):
    """Causal convolution of each channel: x is [tokens, channels], the last of the taps [channels, K] meets now."""
    k = taps.shape[1]
    padded = np.concatenate([np.zeros(((k - 1) * dilation, x.shape[1])), x])
    return sum(padded[i * dilation : i * dilation + len(x)] * taps[:, i] for i in range(k))


def delta_net(model, block, qkv, z, beta, alpha, key_head, length, gate):
    """qkv: [tokens, 2·keys + values]; z: [tokens, values]; beta and alpha: [tokens, value heads], raw.

    key_head: the key head of a value head. length: how q and k are brought to length 1. gate: what z goes through.
    """
    d, key_heads, heads = model.key("ssm.state_size"), model.key("ssm.group_count"), model.key("ssm.time_step_rank")
    t = len(qkv)
    mixed = silu(convolved(qkv, block["ssm_conv1d"]))
    q, k, v = np.split(mixed, [d * key_heads, 2 * d * key_heads], 1)
    q, k = (length(a.reshape(t, key_heads, d))[:, [key_head(h) for h in range(heads)]] for a in (q, k))
    v = v.reshape(t, heads, d)
    decay = np.exp(block["ssm_a"] * softplus(alpha + block["ssm_dt.bias"]))
    beta = sigmoid(beta)
    state = np.zeros((heads, d, d))  # [head, key, value]
    out = np.empty((t, heads, d))
    for p in range(t):
        state *= decay[p][:, None, None]
        change = beta[p][:, None] * (v[p] - np.einsum("hij,hi->hj", state, k[p]))
        state += k[p][:, :, None] * change[:, None, :]
        out[p] = np.einsum("hij,hi->hj", state, q[p]) / np.sqrt(d)
    eps = model.key("attention.layer_norm_rms_epsilon")
    out = rms(out, block["ssm_norm"], eps) * gate(z.reshape(t, heads, d))
    return block.mul("ssm_out", out.reshape(t, -1))


def gated_attention(model, block, x, positions, turn, allowed):
    """Attention whose query projection holds [query | gate] for each head. allowed(p): positions that p sees."""
    key, t = model.key, len(x)
    heads, kv_heads, w = key("attention.head_count"), key("attention.head_count_kv"), key("attention.key_length")
    eps = key("attention.layer_norm_rms_epsilon")
    q, gate = np.split(block.mul("attn_q", x).reshape(t, heads, 2 * w), 2, 2)
    q = turn(rms(q, block["attn_q_norm"], eps), positions[:, None])
    k = turn(rms(block.mul("attn_k", x).reshape(t, kv_heads, w), block["attn_k_norm"], eps), positions[:, None])
    v = block.mul("attn_v", x).reshape(t, kv_heads, w)
    k, v = (np.repeat(a, heads // kv_heads, 1) for a in (k, v))
    out = np.empty((t, heads, w))
    for p in range(t):
        seen = allowed(p)
        score = np.einsum("hi,shi->hs", q[p], k[seen]) / np.sqrt(w)
        e = np.exp(score - score.max(1, keepdims=True))
        out[p] = np.einsum("hs,shi->hi", e / e.sum(1, keepdims=True), v[seen])
    return block.mul("attn_output", (out * sigmoid(gate)).reshape(t, -1))
