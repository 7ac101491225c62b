"""Qwen4 in f64: gated residual streams, delta nets, attention with a sparse selection, experts, n-gram table."""
import numpy as np
from common import expert, frequencies, normalised, rms, rotate, shared_expert, sigmoid, silu, softmax
from delta_net import convolved, delta_net, gated_attention

WORD = (1 << 64) - 1


class Qwen4Exp:
    def __init__(self, model, choices):
        self.model, self.choices, key = model, choices, model.key
        self.streams, self.eps = key("hyper_connection.count"), key("attention.layer_norm_rms_epsilon")
        self.rotated = key("rope.dimension_count")
        self.text_turns_as_one()

    def text_turns_as_one(self):
        """Text has one position for all sections, except for pairs that no section takes."""
        s = self.model.key("rope.dimension_sections")
        for j in range(self.rotated // 2):
            sector = j % sum(s)
            if sector >= 3 * s[{0: 0, 1: 1, 2: 2}[sector % 3]]:
                raise SystemExit(f"pair {j} is in no section of {s}")

    def turn(self, x, position):
        return rotate(x, position, frequencies(self.model.key("rope.freq_base"), self.rotated), "far")

    def logits(self, tokens):
        m = self.model
        x = np.repeat(m["token_embd.weight"][tokens][:, None], self.streams, 1)  # [tokens, streams, width]
        for i in range(m.key("block_count") - m.key("nextn_predict_layers", 0)):
            block = m.block(i)
            if i in m.key("ple.layers", []):
                x = x + self.n_grams(block, x, tokens)
            x = self.connected(block, "attn", x, lambda h: self.mixer(block, i, h))
            x = self.connected(block, "ffn", x, lambda h: self.feed_forward(block, i, h))
        hc = [m[f"output_hc_{n}.weight"] for n in ("norm", "down", "up")]
        y, _ = self.mix(x, *hc)
        return y @ m["output.weight" if m.has("output.weight") else "token_embd.weight"].T

    def stream_rms(self, x, weight):
        """RMS for each stream by itself, one weight for each element of all streams."""
        return rms(x, weight.reshape(self.streams, -1), self.eps)

    def mix(self, x, norm, down, up):
        """One vector of the normalised streams, gated element by element; the streams as they were gated."""
        xn = self.stream_rms(x, norm)
        flat = xn.reshape(len(x), -1)
        gate = sigmoid(silu(flat @ down.T / self.streams) @ up.T).reshape(x.shape)
        return (xn * gate).mean(1), flat

    def connected(self, block, site, x, f):
        if block.has(f"hc_{site}_down_inject"):
            down, inject = np.split(block[f"hc_{site}_down_inject"], [-self.streams])
        else:
            down, inject = block[f"hc_{site}_down"], block[f"hc_{site}_inject"]
        h, flat = self.mix(x, block[f"hc_{site}_norm"], down, block[f"hc_{site}_up"])
        write = 2 * sigmoid(flat @ inject.T / self.streams)
        return x + f(h)[:, None] * write[..., None]

    def mixer(self, block, i, x):
        if block.has("attn_qkv"):
            return self.linear(block, x)
        return gated_attention(self.model, block, x, np.arange(len(x)), self.turn, self.selection(block, i, x))

    def linear(self, block, x):
        key_heads = self.model.key("ssm.group_count")
        return delta_net(
            self.model, block, block.mul("attn_qkv", x), block.mul("attn_gate", x),
            block.mul("ssm_beta", x), block.mul("ssm_alpha", x),
            key_head=lambda h: h % key_heads,
            length=lambda a: a / np.sqrt((a * a).sum(-1, keepdims=True) + self.eps),
            gate=sigmoid)

    def selection(self, block, i, x):
        """The positions that each position attends to: the tail after the last complete block, and of the complete
        blocks the best top_k / ratio, by the published rule."""
        key = self.model.key
        ratios = key("attention.compress_ratios", 0)
        ratio = ratios[i] if isinstance(ratios, list) else ratios
        if not ratio:
            return lambda p: np.arange(p + 1)
        heads, width = key("attention.indexer.head_count"), key("attention.indexer.key_length")
        count = len(x) // ratio
        keys = block.mul("indexer.k_proj", x)[: count * ratio].reshape(count, ratio, width).mean(1)
        keys = self.turn(rms(keys, block["indexer.k_norm"], self.eps), np.arange(count) * ratio)
        q = rms(block.mul("indexer.q_proj", x).reshape(len(x), heads, width), block["indexer.q_norm"], self.eps)
        q = self.turn(q, np.arange(len(x))[:, None])

        def allowed(p):
            whole = (p + 1) // ratio
            score = np.maximum(q[p] @ keys[:whole].T, 0).sum(0)
            blocks = np.sort(self.choices.best(score, key("attention.indexer.top_k") // ratio, "blocks", i, p))
            chosen = (blocks[:, None] * ratio + np.arange(ratio)).ravel()
            return np.concatenate([chosen, np.arange(whole * ratio, p + 1)])

        return allowed

    def feed_forward(self, block, i, x):
        return gated_experts(self.model, block, i, x, self.choices)

    def n_grams(self, block, x, tokens):
        """Hashes of the last tokens fetch rows of a table, which a gate and a dilated convolution bring in."""
        key, t, streams = self.model.key, len(tokens), self.streams
        table = self.model["per_layer_token_embd.weight"]
        found = np.stack([table[self.rows(tokens, p)].ravel() for p in range(t)])
        k = self.stream_rms(block.mul("ple_key", found).reshape(t, streams, -1), block["ple_norm_key"])
        q = self.stream_rms(x, block["ple_norm_query"])
        s = (k * q).sum(-1) / np.sqrt(x.shape[-1])
        gate = sigmoid(np.sign(s) * np.sqrt(np.maximum(np.abs(s), 1e-6)))
        value = gate[..., None] * block.mul("ple_value", found)[:, None]
        normed = self.stream_rms(value, block["ple_norm_conv"]).reshape(t, -1)
        return value + silu(convolved(normed, block["ple_conv1d"], key("ple.ngram_size"))).reshape(value.shape)

    def rows(self, tokens, p):
        """The table's rows for position p. What is before the start or before an end-of-text is end-of-text."""
        key = self.model.key
        eos, size, per = key("ple.eos_token_id"), key("ple.ngram_size"), key("ple.heads_per_ngram")
        window, cut = [int(tokens[p])], False
        for s in range(1, size):
            cut = cut or p < s or tokens[p - s] == eos
            window.append(eos if cut else int(tokens[p - s]))
        rows = []
        for n in range(2, size + 1):
            mixed = 0
            for c, m in zip(window[:n], key("ple.layer_multipliers")):
                mixed ^= c * m & WORD
            for head in range((n - 2) * per, (n - 1) * per):
                rows.append(mixed % key("ple.head_vocab_sizes")[head] + key("ple.head_offsets")[head])
        return rows


def gated_experts(model, block, i, x, choices):
    """The best experts by softmax, renormalised, and a shared one behind a gate of its own."""
    probability = softmax(x @ block["ffn_gate_inp"].T)
    y = sigmoid(x @ block["ffn_gate_inp_shexp"])[:, None] * shared_expert(block, x)
    for p in range(len(x)):
        ids = choices.best(probability[p], model.key("expert_used_count"), "experts", i, p)
        for w, id in zip(normalised(probability[p][ids]), ids):
            y[p] += w * expert(block, id, x[p], None)
    return y
