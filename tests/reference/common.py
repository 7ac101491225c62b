"""What the references share: a GGUF file's values in f64, and the formulas that several architectures use.

Vectors are rows: x is [tokens, width], a weight is [out, in], as numpy sees a GGUF tensor {in, out}.
"""
import numpy as np
from gguf import GGUFReader, quants


class Model:
    """Keys without the architecture's prefix, tensors as f64, looked up by whole name or by block."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.keys = {name: field.contents() for name, field in reader.fields.items()}
        self.arch = self.keys["general.architecture"]
        self.tensors = {t.name: t for t in reader.tensors}
        self.read = {}

    def key(self, name, default=None):
        value = self.keys.get(f"{self.arch}.{name}", default)
        if value is None:
            raise SystemExit(f"the file has no key {self.arch}.{name}")
        return value

    def has(self, name):
        return name in self.tensors

    def __getitem__(self, name):
        if name not in self.read:
            t = self.tensors[name]
            shape = t.shape.tolist()[::-1]
            self.read[name] = quants.dequantize(t.data, t.tensor_type).reshape(shape).astype(np.float64)
        return self.read[name]

    def block(self, i):
        """A view of block i: names without `blk.i.`, `.weight` where nothing else is said."""
        return Block(self, f"blk.{i}.")


class Block:
    def __init__(self, model, prefix):
        self.model, self.prefix = model, prefix

    def name(self, name):
        return name if self.prefix + name in self.model.tensors else name + ".weight"

    def has(self, name):
        return self.model.has(self.prefix + self.name(name))

    def __getitem__(self, name):
        return self.model[self.prefix + self.name(name)]

    def integers(self, name):
        return self.model.tensors[self.prefix + self.name(name)].data

    def mul(self, name, x):
        """x Wᵀ, times the tensor's own scale, plus its bias, where the file has them (`name.scale`, `name.bias`)."""
        y = x @ self[name].T
        if self.has(name + ".scale"):
            y = y * self[name + ".scale"]
        return y + self[name + ".bias"] if self.has(name + ".bias") else y


class Choices:
    """Takes the largest scores and remembers how near each decision was."""

    def __init__(self):
        self.margins = []  # (relative margin, what, block, position, the last score in, the first one out)

    def best(self, scores, k, what, block, position):
        """Indices of the k largest scores, largest first, the lower index of equals."""
        order = np.argsort(-scores, kind="stable")
        if k < len(scores):
            inside, outside = scores[order[k - 1]], scores[order[k]]
            relative = (inside - outside) / np.abs(scores).max()
            self.margins.append((relative, what, block, position, inside, outside, int(order[k - 1]), int(order[k])))
        return order[:k]


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.logaddexp(0, x)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def rms(x, weight, eps):
    """Over the last axis; weight None: not scaled."""
    y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def frequencies(base, count):
    """Radians that each of the count/2 pairs turns by from one position to the next."""
    return base ** (-2 * np.arange(count // 2) / count)


def stretched(base, count, factor, original, fast=32.0, slow=1.0):
    """YaRN's frequencies: pairs that turn more than `fast` times in the `original` context stay, those that turn less
    than `slow` times are slowed by `factor`, with a ramp between, over whole pairs."""
    pair = lambda turns: count * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))
    low, high = max(np.floor(pair(fast)), 0), min(np.ceil(pair(slow)), count - 1)
    slowed = np.clip((np.arange(count // 2) - low) / max(high - low, 0.001), 0, 1)
    return frequencies(base, count) * (slowed / factor + 1 - slowed)


def rotate(x, position, frequency, pairs, last=False, inverse=False):
    """RoPE of the first values of the last axis, or the last ones, two for each frequency; the rest stays.

    x is [..., width], position a number or an array that broadcasts over x's leading axes. pairs says who turns with
    whom: "near" (2j, 2j+1) or "far" (j, j + half of them).
    """
    count = 2 * len(frequency)
    start = x.shape[-1] - count if last else 0
    part = x[..., start : start + count]
    angle = np.asarray(position, np.float64)[..., None] * frequency
    cos, sin = np.cos(angle), -np.sin(angle) if inverse else np.sin(angle)
    out = x.copy()
    turned = out[..., start : start + count]
    a = slice(0, None, 2) if pairs == "near" else slice(0, count // 2)
    b = slice(1, None, 2) if pairs == "near" else slice(count // 2, None)
    turned[..., a] = part[..., a] * cos - part[..., b] * sin
    turned[..., b] = part[..., a] * sin + part[..., b] * cos
    return out


def expert(block, id, x, limit):
    """One routed expert's feed-forward of one row x. limit clamps as DeepSeek-V4 does; None: no clamp."""
    def mul(name, x):
        y = block[name][id] @ x
        return y * block[name + ".scale"][id] if block.has(name + ".scale") else y

    if block.has("ffn_gate_up_exps"):
        gate, up = np.split(mul("ffn_gate_up_exps", x), 2)
    else:
        gate, up = mul("ffn_gate_exps", x), mul("ffn_up_exps", x)
    if limit is not None:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return mul("ffn_down_exps", silu(gate) * up)


def shared_expert(block, x, limit=None):
    gate, up = block.mul("ffn_gate_shexp", x), block.mul("ffn_up_shexp", x)
    if limit is not None:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return block.mul("ffn_down_shexp", silu(gate) * up)


def normalised(weights):
    return weights / max(weights.sum(), 2.0**-14)
