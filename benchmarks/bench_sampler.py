"""Microseconds per drawn token, medians: python benchmarks/bench_sampler.py [--runs 300]

Logits are random and of two shapes: "peaked" as a trained model's (few likely tokens, a long tail), and "flat" (normal
with a deviation of 2.5, so that thousands of tokens lie inside top_p), which is the hard case for a filter.
A token of SmolLM2-135M takes about 8,000 microseconds on one core; a draw is to stay below 5 % of that.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pantheon._core import ffi, lib

VOCABULARIES = (49_152, 150_000)
PENALTIES = {"repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1}
CHAINS: dict[str, Mapping[str, float]] = {
    "greedy": {},
    "greedy, penalties": PENALTIES,
    "top_k 40, top_p 0.95, penalties": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, **PENALTIES},
    "top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "min_p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "no filter": {"temperature": 0.8},
}
N_SEEN = 64


def make_logits(shape: str, n: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """float32[n]; "peaked" gives the token of rank r a probability of about r^-1.5 times some noise."""
    if shape == "flat":
        return rng.normal(0, 2.5, n).astype(np.float32)
    ranks = rng.permutation(n) + 1
    return (20 - 1.5 * np.log(ranks) + rng.normal(0, 0.5, n)).astype(np.float32)


def measure(logits: npt.NDArray[np.float32], chain: Mapping[str, float], runs: int) -> float:
    """Median microseconds of one pn_sample call."""
    params = ffi.new("pn_sampling_params *", lib.pn_sampling_defaults())
    for name, value in chain.items():
        setattr(params, name, value)
    sampler: Any = ffi.gc(lib.pn_sampler_new(len(logits), params), lib.pn_sampler_free)
    data = ffi.from_buffer("float[]", logits)
    seen = ffi.new("uint32_t[]", list(range(N_SEEN)))
    token = ffi.new("uint32_t *")
    times = []
    for _ in range(runs + 5):
        start = time.perf_counter()
        status = lib.pn_sample(sampler, data, seen, N_SEEN, token)
        times.append(time.perf_counter() - start)
        if status != 0:
            raise SystemExit(bytes(ffi.string(lib.pn_last_error())).decode())
    return float(np.median(times[5:])) * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300, help="draws per measurement (default %(default)s)")
    runs = parser.parse_args().runs
    rng = np.random.default_rng(0)
    columns = [(shape, n, make_logits(shape, n, rng)) for shape in ("peaked", "flat") for n in VOCABULARIES]
    version = ffi.string(lib.pn_version()).decode()
    print(f"microseconds per draw, median of {runs}; {platform.machine()}, pantheon {version}")
    print(f"{'':32}" + "".join(f"{f'{shape} {n:,}':>16}" for shape, n, _ in columns))
    for name, chain in CHAINS.items():
        print(f"{name:32}" + "".join(f"{measure(logits, chain, runs):16.1f}" for _, _, logits in columns))


if __name__ == "__main__":
    main()
