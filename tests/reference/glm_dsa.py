"""GLM-5 in f64: latent attention of which an indexer leaves positions out, dense and expert feed-forwards."""
import numpy as np
from common import expert, frequencies, normalised, rms, rotate, shared_expert, sigmoid, silu, softmax

INDEX_EPS = 1e-6  # of the indexer's LayerNorm: no key gives it


class GlmDsa:
    def __init__(self, model, choices):
        self.model, self.choices, key = model, choices, model.key
        self.eps, self.heads = key("attention.layer_norm_rms_epsilon"), key("attention.head_count")
        frequency = frequencies(key("rope.freq_base"), key("rope.dimension_count"))
        self.turn = lambda x, position, **how: rotate(x, position, frequency, "near", **how)

    def logits(self, tokens):
        m, seen = self.model, None
        x = m["token_embd.weight"][tokens]
        for i in range(m.key("block_count")):
            block = m.block(i)
            h = rms(x, block["attn_norm"], self.eps)
            compact = rms(block.mul("attn_q_a", h), block["attn_q_a_norm"], self.eps)
            types = m.key("attention.indexer.types", 1)
            if types[i] if isinstance(types, list) else types:  # else what the layer before sees
                seen = self.indexed(block, i, h, compact)
            x = x + self.attention(block, h, compact, seen)
            h = rms(x, block["ffn_norm"], self.eps)
            x = x + (self.dense(block, h) if block.has("ffn_gate") else self.experts(block, i, h))
        return rms(x, m["output_norm.weight"], self.eps) @ m["output.weight"].T

    def attention(self, block, x, compact, seen):
        """With the keys' and values' projections taken out of the latent vectors: no absorption."""
        t, rotated = len(x), self.model.key("rope.dimension_count")
        at, width = np.arange(t), self.model.key("attention.key_length_mla")
        q = self.turn(block.mul("attn_q_b", compact).reshape(t, self.heads, width), at[:, None], last=True)
        latent, place = np.split(block.mul("attn_kv_a_mqa", x), [-rotated], 1)
        latent, place = rms(latent, block["attn_kv_a_norm"], self.eps), self.turn(place, at)
        # The file has one matrix for each head: [latent, without position] and [value, latent].
        k = np.einsum("tl,hln->thn", latent, block["attn_k_b"].reshape(self.heads, latent.shape[1], -1))
        k = np.concatenate([k, np.repeat(place[:, None], self.heads, 1)], 2)
        v = np.einsum("tl,hvl->thv", latent, block["attn_v_b"].reshape(self.heads, -1, latent.shape[1]))
        out = np.stack([
            np.einsum("hs,shv->hv", softmax(np.einsum("hw,shw->hs", q[p], k[seen[p]]) / np.sqrt(width)), v[seen[p]])
            for p in range(t)])
        return block.mul("attn_output", out.reshape(t, -1))

    def indexed(self, block, i, x, compact):
        """The best positions for each position, itself among those that compete."""
        key, at = self.model.key, np.arange(len(x))
        heads, width = key("attention.indexer.head_count"), key("attention.indexer.key_length")
        k = block.mul("indexer.attn_k", x)
        k = k - k.mean(1, keepdims=True)
        k = k / np.sqrt((k * k).mean(1, keepdims=True) + INDEX_EPS)
        k = self.turn(k * block["indexer.k_norm.weight"] + block["indexer.k_norm.bias"], at)
        q = self.turn(block.mul("indexer.attn_q_b", compact).reshape(len(x), heads, width), at[:, None])
        weight = block.mul("indexer.proj", x) / np.sqrt(heads * width)
        score = lambda p: weight[p] @ np.maximum(q[p] @ k[: p + 1].T, 0)
        top = key("attention.indexer.top_k")
        return [np.sort(self.choices.best(score(p), top, "positions", i, p)) for p in at]

    def dense(self, block, x):
        return block.mul("ffn_down", silu(block.mul("ffn_gate", x)) * block.mul("ffn_up", x))

    def experts(self, block, i, x):
        key = self.model.key
        probability = sigmoid(x @ block["ffn_gate_inp"].T)
        y = shared_expert(block, x)
        for p in range(len(x)):
            biased = probability[p] + block["exp_probs_b.bias"]
            ids = self.choices.best(biased, key("expert_used_count"), "experts", i, p)
            weights = probability[p][ids]
            weights = normalised(weights) if key("expert_weights_norm", False) else weights
            weights = weights * (key("expert_weights_scale", 0.0) or 1.0)
            y[p] += sum(w * expert(block, id, x[p], None) for w, id in zip(weights, ids))
        return y
