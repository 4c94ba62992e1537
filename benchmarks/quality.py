"""How far the logits are from a float64 evaluation of the same file, beside llama-cpp-python.

    python benchmarks/quality.py --peer-python /path/to/venv/bin/python [MODEL.gguf] [--text FILE] [--tokens 256]

The reference is the numpy forward pass of the tests: weights dequantized by the `gguf` package, all in float64, no
rounding of activations. For each position of a text: Kullback-Leibler divergence of the engine's distribution from the
reference's, in nats, and whether both put the same token first. The peer runs in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
Floats = npt.NDArray[np.floating[Any]]

PEER = """
import sys
import llama_cpp, numpy
path, ids_path, out_path = sys.argv[1:]
ids = numpy.load(ids_path).tolist()
llama = llama_cpp.Llama(path, n_ctx=len(ids) + 8, n_batch=512, n_threads=2, logits_all=True, verbose=False)
llama.eval(ids)
numpy.save(out_path, numpy.array(llama.scores[: len(ids)], numpy.float32))
"""


def log_softmax(logits: Floats) -> Floats:
    """Natural log-probabilities along the last axis, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))


def divergence(reference: Floats, logits: Floats) -> Floats:
    """KL(reference || logits) of each row, in nats."""
    want, got = log_softmax(reference), log_softmax(logits)
    return (np.exp(want) * (want - got)).sum(axis=-1)


def peer_logits(python: str, path: str, ids: npt.NDArray[np.uint32]) -> Floats:
    """What llama-cpp-python computes for the same ids, float32[n, n_vocab]."""
    with tempfile.TemporaryDirectory() as folder:
        ids_path, out_path = f"{folder}/ids.npy", f"{folder}/out.npy"
        np.save(ids_path, ids)
        subprocess.run([python, "-c", PEER, path, ids_path, out_path], check=True, stderr=subprocess.DEVNULL)
        loaded: Floats = np.load(out_path)
        return loaded


def row(name: str, reference: Floats, logits: Floats) -> str:
    """One line of the table."""
    kl = divergence(reference, logits)
    same = (reference.argmax(axis=1) == logits.argmax(axis=1)).mean()
    centred = logits - logits.mean(axis=1, keepdims=True) - (reference - reference.mean(axis=1, keepdims=True))
    error = np.sqrt((centred**2).mean() / reference.std(axis=1).mean() ** 2)
    return f"| {name} | {kl.mean():.6f} | {np.median(kl):.6f} | {kl.max():.5f} | {same:.1%} | {error:.2%} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2", help="catalogue name or path (default: smollm2)")
    parser.add_argument("--peer-python", help="a Python that has llama_cpp; without it only Pantheon is measured")
    parser.add_argument("--text", default=str(ROOT / "LICENSE"), help="a text file (default: the licence)")
    parser.add_argument("--tokens", type=int, default=256, help="how many tokens of it (default: 256)")
    arguments = parser.parse_args()

    sys.path.insert(0, str(ROOT / "tests"))
    from reference_forward import Reference

    import pantheon
    from pantheon import catalog

    path = str(catalog.resolve(arguments.model))
    with pantheon.load(path, blas=False) as model:
        ids = model.tokenizer.encode(Path(arguments.text).read_text(encoding="utf-8"), bos=True)[: arguments.tokens]
        ours = model.logits(ids)
        isa = model.info.isa
    reference = Reference(path, half_cache=False).logits(ids)
    print("| engine | KL mean | median | worst | same first token | error / deviation |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    print(row(f"pantheon {pantheon.__version__} ({isa})", reference, ours))
    if arguments.peer_python:
        print(row("llama-cpp-python", reference, peer_logits(arguments.peer_python, path, ids)))
    print(f"\n{Path(path).name}, {len(ids)} tokens of {Path(arguments.text).name}.")


if __name__ == "__main__":
    main()
