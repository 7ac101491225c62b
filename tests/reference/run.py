#!/usr/bin/env python3
"""Logits of a GGUF model in f64, slow and plain, to see who is right where programs differ.

  run.py MODEL.gguf TOKENS OUT.f32 [--rows FIRST,PAST,STEP] [--set KEY=NUMBER]... [--near 10]

TOKENS are ids with commas between, or @FILE with such a line. Written are the logits of all positions, or of those
that --rows says, as rows of little-endian f32. --set replaces a key of the file, named without its architecture. On
stdout: the decisions that were nearest, of those that leave something out (experts, blocks): the margin over the
largest score, and where it was.
"""
import argparse
import numpy as np
from common import Choices, Model
from deepseek4 import DeepSeek4
from glm_dsa import GlmDsa
from qwen3next import Qwen3Next
from qwen4exp import Qwen4Exp

ARCHITECTURES = {"deepseek4": DeepSeek4, "glm-dsa": GlmDsa, "qwen3next": Qwen3Next, "qwen4exp": Qwen4Exp}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("tokens")
    ap.add_argument("out")
    ap.add_argument("--rows", default="0,None,1")
    ap.add_argument("--set", action="append", default=[])
    ap.add_argument("--near", type=int, default=10, help="how many near decisions to show")
    a = ap.parse_args()
    text = open(a.tokens[1:]).read() if a.tokens.startswith("@") else a.tokens
    tokens = np.array([int(t) for t in text.split(",")])
    model, choices = Model(a.model), Choices()
    for key, number in (s.split("=") for s in a.set):
        model.keys[f"{model.arch}.{key}"] = int(number)
    logits = ARCHITECTURES[model.arch](model, choices).logits(tokens)
    first, past, step = (None if n == "None" else int(n) for n in a.rows.split(","))
    logits[first:past:step].astype("<f4").tofile(a.out)
    for relative, what, block, position, inside, outside, last, first in sorted(choices.margins)[: a.near]:
        print(f"margin {relative:.2e}: {what} of block {block} at position {position}: {last} in with {inside:.9g}, "
              f"{first} out with {outside:.9g}")


main()
