"""How cost grows with the size of a model: random models of 0.1 to 3 billion parameters, Q8_0.

    python benchmarks/bench_sizes.py [--sizes 0.1 0.4 1.2 3] [--threads 2] [--runs 3]

Writes each model into a temporary folder (3.4 GB for the largest), measures a prompt of 512 and decoding 32 tokens,
prints medians, and removes it. What the weights say does not matter for time: their bytes are random, their layers
alike.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import pantheon
from pantheon.bench import measure

ROOT = Path(__file__).resolve().parent.parent
VOCAB = 49_152
DECODE = 32


@dataclass(frozen=True)
class Shape:
    """Widths of a model of the llama family."""

    embed: int
    layers: int
    heads: int
    heads_kv: int
    feed_forward: int


SHAPES = {
    "0.1": Shape(576, 30, 9, 3, 1536),
    "0.4": Shape(960, 32, 15, 5, 2560),
    "1.2": Shape(2048, 18, 32, 8, 8192),
    "3": Shape(3072, 28, 24, 8, 8192),
}


def random_q8(rows: int, columns: int, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Rows of Q8_0 blocks whose weights have a deviation of about 0.02."""
    blocks = rng.integers(0, 256, (rows, columns // 32, 34), dtype=np.uint8)
    blocks[:, :, :2] = np.frombuffer(np.float16(0.02 / 74).tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def write_model(path: str, shape: Shape) -> None:
    """A whole file; all layers share the same bytes."""
    sys.path.insert(0, str(ROOT / "tests"))
    from tiny_gguf import DType, Raw, VType, tokenizer_metadata, write_file

    rng = np.random.default_rng(0)
    kv = shape.embed // shape.heads * shape.heads_kv
    matrices = {
        "attn_q": (shape.embed, shape.embed), "attn_k": (kv, shape.embed), "attn_v": (kv, shape.embed),
        "attn_output": (shape.embed, shape.embed), "ffn_gate": (shape.feed_forward, shape.embed),
        "ffn_up": (shape.feed_forward, shape.embed), "ffn_down": (shape.embed, shape.feed_forward),
    }  # fmt: skip
    numbers = {
        "block_count": shape.layers, "context_length": 4096, "embedding_length": shape.embed,
        "feed_forward_length": shape.feed_forward, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.heads_kv,
    }  # fmt: skip
    metadata = tokenizer_metadata(VOCAB) | {f"llama.{key}": (n, VType.UINT32) for key, n in numbers.items()}
    metadata["llama.attention.layer_norm_rms_epsilon"] = (1e-5, VType.FLOAT32)
    ones = np.ones(shape.embed, np.float32)
    shared = {name: Raw(random_q8(rows, columns, rng), DType.Q8_0) for name, (rows, columns) in matrices.items()}
    shared |= {"attn_norm": ones, "ffn_norm": ones}
    tensors = {"token_embd.weight": Raw(random_q8(VOCAB, shape.embed, rng), DType.Q8_0), "output_norm.weight": ones}
    for layer in range(shape.layers):
        tensors |= {f"blk.{layer}.{name}.weight": data for name, data in shared.items()}
    write_file(path, "llama", metadata, tensors)


def measure_model(path: str, threads: int, runs: int) -> dict[str, float]:
    """Medians of prompt and decode, and what a token reads."""
    started = time.perf_counter()
    with pantheon.load(path, threads=threads) as model, model.state() as state:
        load_s = time.perf_counter() - started
        rng = np.random.default_rng()
        prompts, decodes = [], []
        for run in range(runs + 1):
            ids = rng.integers(0, VOCAB, 512).tolist()
            state.reset()
            started = time.perf_counter()
            state.eval(ids)
            prompt_s = time.perf_counter() - started
            started = time.perf_counter()
            for token in range(DECODE):
                state.eval([token])
            if run:
                prompts.append(512 / prompt_s)
                decodes.append(DECODE / (time.perf_counter() - started))
        return {
            "parameters": model.info.n_params, "bytes": model.info.weight_bytes, "load_s": load_s,
            "prompt": statistics.median(prompts), "decode": statistics.median(decodes),
        }  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print("| parameters | weights | load, s | prompt 512, tokens/s | GMAC/s | decode, tokens/s | GB/s | memory |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/random-{size}b.gguf"
            write_model(path, SHAPES[size])
            found = measure_model(path, arguments.threads, arguments.runs)
            limit = measure.read_bandwidth(arguments.threads, int(found["bytes"]))
        inner = found["parameters"] - VOCAB * SHAPES[size].embed
        print(
            f"| {found['parameters'] / 1e9:.2f} B | {found['bytes'] / 1e9:.2f} GB | {found['load_s']:.2f} "
            f"| {found['prompt']:.1f} | {found['prompt'] * inner / 1e9:.0f} | {found['decode']:.1f} "
            f"| {found['decode'] * found['bytes'] / 1e9:.1f} | {limit / 1e9:.1f} GB/s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
