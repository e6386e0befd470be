#!/usr/bin/env python3
"""Greedy decoding with the Whisper tiny.en decoder in plain NumPy, float32: the tokens that serve.cpp must reproduce.

    python examples/serving/reference.py            writes whisper_tiny_en/reference.json

A request is the start of one recording, so many encoder frames (20 ms each) of the 1500 stored ones. Beside the tokens
stands the smallest gap between the best and the second best logit of a request: what a rounding error may cost before
a token changes.
"""

import json
import math
import pathlib

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent / "whisper_tiny_en"
KINDS = {"I8": "i1", "F16": "<f2", "F32": "<f4", "I32": "<i4"}
HEADS, LONGEST = 6, 100
FRAMES = [1500, 600, 450, 1250, 400, 500, 1000, 350]
erf = np.vectorize(math.erf)


def load():
    """Tensors by name; int8 weights dequantised."""
    raw = (FOLDER / "decoder_int8.safetensors").read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8:begin]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            kind = KINDS[entry["dtype"]]
            tensors[name] = np.frombuffer(raw[begin + first : begin + last], kind).reshape(entry["shape"])
    for name in [n[:-2] for n in tensors if n.endswith(".w")]:
        tensors[name] = tensors[name + ".w"].astype(np.float32) * tensors[name + ".scale"][:, None]
    return tensors


def decode(t, frames):
    def linear(x, name):
        return x @ t[name].T + t[name + ".b"]

    def split(x):
        return x.reshape(len(x), HEADS, -1)

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * t[name + ".g"] + t[name + ".b"]

    def attend(q, k, v):
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("hqk,khd->qhd", probs / probs.sum(-1, keepdims=True), v).reshape(len(q), -1)

    audio = t["audio_states"][:frames].astype(np.float32)
    layers = 1 + max(int(name.split(".")[0]) for name in t if name[0].isdigit())
    cross = [[split(x) for x in np.split(linear(audio, f"{i}.cross.kv"), 2, -1)] for i in range(layers)]
    cache = [[np.zeros((0, HEADS, 64), np.float32)] * 2 for _ in range(layers)]
    tokens, gap = list(map(int, t["prompt"])), math.inf
    for position in range(LONGEST):
        x = (t["embed"][tokens[position]] + t["pos"][position])[None]
        for i in range(layers):
            y = norm(x, f"{i}.self.norm")
            new = np.split(linear(y, f"{i}.self.kv"), 2, -1)
            cache[i] = [np.concatenate([old, split(n)]) for old, n in zip(cache[i], new)]
            x = x + linear(attend(split(linear(y, f"{i}.self.q")), *cache[i]), f"{i}.self.out")
            y = linear(norm(x, f"{i}.cross.norm"), f"{i}.cross.q")
            x = x + linear(attend(split(y), *cross[i]), f"{i}.cross.out")
            y = linear(norm(x, f"{i}.mlp.norm"), f"{i}.mlp.up")
            x = x + linear(0.5 * y * (1 + erf(y / math.sqrt(2))), f"{i}.mlp.down")
        if position + 1 < len(tokens):
            continue
        logits = (norm(x, "norm") @ t["embed"].T)[0]
        logits[t["prompt"]] = -np.inf  # control tokens are never spoken
        second, best = np.sort(logits)[-2:]
        gap = min(gap, float(best - second))
        tokens.append(int(logits.argmax()))
        if tokens[-1] == t["end"][0]:
            break
    return tokens[len(t["prompt"]) :], gap


def main():
    tensors, vocab = load(), json.loads((FOLDER / "vocab.json").read_text())
    requests = []
    for frames in FRAMES:
        tokens, gap = decode(tensors, frames)
        text = "".join(vocab[token] for token in tokens if token != tensors["end"][0])
        print(f"{frames:5} frames, {len(tokens):3} tokens, least gap {gap:.3f}: {text}")
        requests.append({"frames": frames, "least_gap": round(gap, 4), "text": text, "tokens": tokens})
    lines = ",\n".join(json.dumps(request) for request in requests)
    (FOLDER / "reference.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
