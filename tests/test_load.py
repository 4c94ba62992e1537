"""Loading: weights once in memory and no second copy, progress that can stop it, any order of tensors in the file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_gguf import write_model

import pantheon

needs_true_memory = pytest.mark.skipif(
    not Path("/proc/self/status").exists() or "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="needs /proc, and an allocator that gives memory back (AddressSanitizer's keeps what was freed)",
)


# ---- Memory

MEASURE = """
import sys, pantheon

def kilobytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

with open(sys.argv[1], "rb") as file:  # in the page cache, and no page of it in this process
    while file.read(1 << 20):
        pass
before = kilobytes("VmRSS")
model = pantheon.load(sys.argv[1], threads=2, mmap=sys.argv[2] == "mmap")
print(model.info.weight_bytes, 1024 * (kilobytes("VmRSS") - before), 1024 * (kilobytes("VmHWM") - before))
"""
SMALL = 16_000_000
"""The tokenizer of 49,152 tokens, the header of the file, and what Python itself takes for the first model."""


def growth(path: str, how: str) -> tuple[int, int, int]:
    """Bytes of weights, and by how much a fresh process grew: afterwards, and at most meanwhile."""
    done = subprocess.run([sys.executable, "-c", MEASURE, path, how], capture_output=True, text=True, check=True)
    weights, after, peak = map(int, done.stdout.split())
    return weights, after, peak


@needs_true_memory
@pytest.mark.parametrize("how", ["mmap", "read"])
def test_after_loading_the_weights_are_resident_once(smollm2: str, how: str) -> None:
    weights, after, peak = growth(smollm2, how)
    assert weights > 140_000_000
    assert weights <= after < weights + SMALL
    if how == "mmap":
        assert peak < weights + SMALL  # the file's pages go as they are packed


# ---- Progress


def test_progress_rises_to_one_in_the_thread_that_loads(smollm2: str) -> None:
    seen: list[float] = []
    threads: set[int] = set()

    def progress(fraction: float) -> None:
        seen.append(fraction)
        threads.add(threading.get_ident())

    pantheon.load(smollm2, threads=2, progress=progress).close()
    assert seen == sorted(set(seen))
    assert 0 < seen[0] < 0.5
    assert seen[-1] == 1.0
    assert threads == {threading.get_ident()}


def test_a_tiny_model_reports_its_end(tiny_model: str) -> None:
    seen: list[float] = []
    pantheon.load(tiny_model, progress=seen.append).close()
    assert seen == [1.0]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_what_progress_raises_stops_the_load_and_reaches_the_caller(smollm2: str, threads: int, at: float) -> None:
    seen: list[float] = []

    def stop(fraction: float) -> None:
        seen.append(fraction)
        if fraction >= at:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        pantheon.load(smollm2, threads=threads, progress=stop)
    assert seen[-1] >= at
    assert at == 1.0 or seen[-1] < 1.0


def test_ctrl_c_stops_a_load(smollm2: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        pantheon.load(smollm2, progress=lambda fraction: os.kill(os.getpid(), signal.SIGINT))


# ---- The order of the file


def reordered(source: str, target: Path) -> str:
    """A copy whose tensor data lies in the opposite order."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kinds = field.types
        sub_type = kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kinds[0], sub_type=sub_type)
    for tensor in reversed(reader.tensors):
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return os.fspath(target)


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16", "F32"])
def test_the_order_of_tensors_in_the_file_changes_no_bit(tmp_path: Path, dtype: str) -> None:
    """Large enough for several shares of the packing, with a vocabulary that is no multiple of eight."""
    source = write_model(tmp_path / "a.gguf", dtype=dtype, n_embd=128, n_ff=256, n_layer=3, n_vocab=10001)
    with pantheon.load(source, threads=1) as one, pantheon.load(reordered(source, tmp_path / "b.gguf")) as other:
        assert one.info.weight_bytes > 3 * 256 * 1024
        assert (one.logits([5, 600, 7, 10000]) == other.logits([5, 600, 7, 10000])).all()
