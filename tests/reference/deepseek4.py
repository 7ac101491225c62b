"""DeepSeek-V4 in f64: hyper-connections mixed by Sinkhorn's iteration, one shared key and value head, a raw window
beside compressed blocks of 4 (chosen by an indexer) or 128 positions, experts by hash or by router."""
import numpy as np
from common import (expert, frequencies, normalised, rms, rotate, shared_expert, sigmoid, softmax, softplus,
                    stretched)

STREAMS = 4


class DeepSeek4:
    def __init__(self, model, choices):
        self.model, self.choices = model, choices
        key = model.key
        self.eps, self.hc_eps = key("attention.layer_norm_rms_epsilon"), key("hyper_connection.epsilon")
        self.heads, self.width = key("attention.head_count"), key("attention.key_length")

    def frequency(self, ratio):
        """Layers with compressed blocks have a base of their own, and YaRN, without its factor of the values."""
        key = self.model.key
        count = key("rope.dimension_count")
        if not ratio:
            return frequencies(key("rope.freq_base"), count)
        base = key("attention.compress_rope_freq_base")
        if key("rope.scaling.type", "none") != "yarn":
            return frequencies(base, count)
        return stretched(base, count, key("rope.scaling.factor"), key("rope.scaling.original_context_length"))

    def logits(self, tokens):
        m = self.model
        x = np.repeat(m["token_embd.weight"][tokens][:, None], STREAMS, 1)  # [tokens, streams, width]
        for i in range(m.key("block_count") - m.key("nextn_predict_layers", 0)):
            block = m.block(i)
            x = self.connected(block, "attn", x, lambda h: self.attention(block, i, h))
            x = self.connected(block, "ffn", x, lambda h: self.feed_forward(block, i, h, tokens))
        mix = self.flat(x) @ m["output_hc_fn.weight"].T
        read = sigmoid(mix * m["output_hc_scale.weight"] + m["output_hc_base.weight"]) + self.hc_eps
        y = np.einsum("th,the->te", read, x)
        return rms(y, m["output_norm.weight"], self.eps) @ m["output.weight"].T

    def flat(self, x):
        """All streams under one RMS."""
        return rms(x.reshape(len(x), -1), None, self.eps)

    def connected(self, block, site, x, f):
        """Reads the streams, applies f after its norm, and writes what it gives while the streams are mixed."""
        n, eps = STREAMS, self.hc_eps
        mix = self.flat(x) @ block[f"hc_{site}_fn"].T
        scale, base = block[f"hc_{site}_scale"], block[f"hc_{site}_base"]
        read = sigmoid(mix[:, :n] * scale[0] + base[:n]) + eps
        write = 2 * sigmoid(mix[:, n : 2 * n] * scale[1] + base[n : 2 * n])
        # [tokens, from, to]: in the file "to" runs fastest.
        c = (mix[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)
        c = softmax(c) + eps
        c /= c.sum(1, keepdims=True) + eps
        for _ in range(self.model.key("hyper_connection.sinkhorn_iterations") - 1):
            c /= c.sum(2, keepdims=True) + eps
            c /= c.sum(1, keepdims=True) + eps
        h = np.einsum("th,the->te", read, x)
        y = f(rms(h, block[f"{site}_norm"], self.eps))
        return y[:, None] * write[..., None] + np.einsum("tsd,tse->tde", c, x)

    def attention(self, block, i, x):
        m, t, w = self.model, len(x), self.width
        ratio = m.key("attention.compress_ratios")[i]
        at, frequency = np.arange(t), self.frequency(ratio)
        turn = lambda v, position, **how: rotate(v, position, frequency, "near", last=True, **how)

        compact = rms(block.mul("attn_q_a", x), block["attn_q_a_norm"], self.eps)
        q = rms(block.mul("attn_q_b", compact).reshape(t, self.heads, w), None, self.eps)
        q = turn(q, at[:, None])
        raw = turn(rms(block.mul("attn_kv", x), block["attn_kv_a_norm"], self.eps), at)
        blocks = self.compressed(block, "attn_compressor", x, ratio, w, turn) if ratio else np.zeros((0, w))
        if ratio == 4:
            ids = self.indexed(block, i, x, compact, turn)
        else:
            ids = [np.arange((p + 1) // ratio if ratio else 0) for p in range(t)]

        window, sinks = m.key("attention.sliding_window"), block["attn_sinks"]
        out = np.empty((t, self.heads, w))
        for p in range(t):
            seen = np.concatenate([raw[max(0, p - window + 1) : p + 1], blocks[np.sort(ids[p])]])
            score = np.concatenate([q[p] @ seen.T / np.sqrt(w), sinks[:, None]], 1)
            out[p] = softmax(score)[:, :-1] @ seen  # the sink takes weight and gives no value
        out = turn(out, at[:, None], inverse=True)
        groups = m.key("attention.output_group_count")
        out = out.reshape(t, groups, -1)
        lora = block["attn_output_a"].reshape(groups, -1, out.shape[-1])
        return block.mul("attn_output_b", np.einsum("tgi,goi->tgo", out, lora).reshape(t, -1))

    def compressed(self, block, name, x, ratio, width, turn):
        """One entry for each whole block: values pooled by a softmax per dimension, normed, turned to its start."""
        value = block.mul(f"{name}_kv", x)
        score = block.mul(f"{name}_gate", x) + block[f"{name}_ape"][np.arange(len(x)) % ratio]
        count = len(x) // ratio
        value, score = (v[: count * ratio].reshape(count, ratio, v.shape[1]) for v in (value, score))
        if ratio == 4:
            # Blocks overlap: the first half of what a position offers goes to the block after its own.
            old = lambda v, none: np.concatenate([np.full((1, ratio, width), none), v[:-1, :, :width]])[:count]
            value = np.concatenate([old(value, 0.0), value[..., width:]], 1)
            score = np.concatenate([old(score, -np.inf), score[..., width:]], 1)
        pooled = (softmax(score, 1) * value).sum(1)
        return turn(rms(pooled, block[f"{name}_norm"], self.eps), np.arange(count) * ratio)

    def indexed(self, block, i, x, compact, turn):
        """The blocks that each position looks at: the best by the indexer of those complete."""
        heads, width = self.model.key("attention.indexer.head_count"), self.model.key("attention.indexer.key_length")
        top = self.model.key("attention.indexer.top_k")
        q = turn(block.mul("indexer.attn_q_b", compact).reshape(len(x), heads, width), np.arange(len(x))[:, None])
        keys = self.compressed(block, "indexer_compressor", x, 4, width, turn)
        weight = block.mul("indexer.proj", x) / np.sqrt(width * heads)
        ids = []
        for p in range(len(x)):
            score = weight[p] @ np.maximum(q[p] @ keys[: (p + 1) // 4].T, 0)
            ids.append(self.choices.best(score, top, "blocks", i, p))
        return ids

    def feed_forward(self, block, i, x, tokens):
        key = self.model.key
        of_block = lambda v: v[i] if isinstance(v, list) else v
        limit = of_block(key("swiglu_clamp_exp"))
        probability = np.sqrt(softplus(x @ block["ffn_gate_inp"].T))
        y = shared_expert(block, x, of_block(key("swiglu_clamp_shexp", limit)))
        for p in range(len(x)):
            if i < key("hash_layer_count"):
                ids = block.integers("ffn_gate_tid2eid")[tokens[p]]
            else:
                biased = probability[p] + block["exp_probs_b.bias"]
                ids = self.choices.best(biased, key("expert_used_count"), "experts", i, p)
            weights = normalised(probability[p][ids]) * key("expert_weights_scale")
            y[p] += sum(w * expert(block, id, x[p], limit) for w, id in zip(weights, ids))
        return y
