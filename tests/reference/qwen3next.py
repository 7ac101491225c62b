"""Qwen3-Next in f64: plain residuals, delta nets and gated attention in turns, experts with a gated shared one."""
import numpy as np
from common import frequencies, rms, rotate, silu
from delta_net import delta_net, gated_attention
from qwen4exp import gated_experts


class Qwen3Next:
    def __init__(self, model, choices):
        self.model, self.choices = model, choices
        self.eps = model.key("attention.layer_norm_rms_epsilon")

    def logits(self, tokens):
        m = self.model
        x = m["token_embd.weight"][tokens]
        for i in range(m.key("block_count")):
            block = m.block(i)
            h = rms(x, block["attn_norm"], self.eps)
            x = x + (self.linear(block, h) if block.has("ssm_out") else self.attention(block, h))
            h = rms(x, block["post_attention_norm"], self.eps)
            x = x + gated_experts(m, block, i, h, self.choices)
        y = rms(x, m["output_norm.weight"], self.eps)
        return y @ m["output.weight" if m.has("output.weight") else "token_embd.weight"].T

    def attention(self, block, x):
        frequency = frequencies(self.model.key("rope.freq_base"), self.model.key("rope.dimension_count"))
        turn = lambda v, position: rotate(v, position, frequency, "far")
        return gated_attention(self.model, block, x, np.arange(len(x)), turn, lambda p: np.arange(p + 1))

    def linear(self, block, x):
        each = self.model.key("ssm.time_step_rank") // self.model.key("ssm.group_count")
        # For each key head its value heads' betas, then their alphas.
        ba = block.mul("ssm_ba", x).reshape(len(x), -1, 2, each)
        beta, alpha = (ba[:, :, n].reshape(len(x), -1) for n in (0, 1))
        return delta_net(
            self.model, block, block.mul("attn_qkv", x), block.mul("attn_gate", x), beta, alpha,
            key_head=lambda h: h // each,
            length=lambda a: a / np.sqrt((a * a).sum(-1, keepdims=True) + self.eps),
            gate=silu)
