"""State.save and State.load: the same bits as if the state had never been away; files appear whole or not at all."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from reference_families import FAMILIES
from tiny_families import write_family
from tiny_gguf import VType, write_model

import pantheon
from pantheon.errors import BusyError, FileError

IDS = [(i * 31 + 5) % 300 for i in range(150)]
MORE = [3, 1, 4, 1, 5]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Iterator[pantheon.Model]:
    with pantheon.load(tiny_model, threads=1) as model:
        yield model


def test_a_loaded_state_continues_with_the_same_bits(model: pantheon.Model, tmp_path: Path) -> None:
    with model.state() as state, model.state(200) as other:
        before = state.eval(IDS)
        state.save(tmp_path / "state")
        other.eval([9] * 20)
        other.load(tmp_path / "state")
        assert (other.tokens == state.tokens).all()
        assert other.logits is not None
        assert (other.logits == before).all()
        assert (other.eval(MORE) == state.eval(MORE)).all()
        assert other.window == 200
        other.rewind(70)
        assert (other.eval(MORE) == model.logits(IDS[:70] + MORE)[-1]).all()


def test_a_state_without_logits_has_none_after_loading_either(model: pantheon.Model, tmp_path: Path) -> None:
    with model.state() as state, model.state() as other:
        state.save(tmp_path / "empty")
        state.eval(IDS)
        state.rewind(130)
        state.save(tmp_path / "rewound")
        other.eval([1])
        other.load(tmp_path / "rewound")
        assert other.logits is None
        assert other.tokens.tolist() == IDS[:130]
        assert (other.eval(MORE) == state.eval(MORE)).all()
        other.load(tmp_path / "empty")
        assert len(other) == 0
        assert (other.eval(MORE) == model.logits(MORE)[-1]).all()


def test_another_instruction_set_and_number_of_threads_in_another_process(
    tiny_model: str, isa: str, tmp_path: Path
) -> None:
    script = (
        "import sys, pantheon, numpy as np\n"
        "model = pantheon.load(sys.argv[1], threads=2, isa=sys.argv[2], mmap=False)\n"
        "state = model.state()\n"
        "state.load(sys.argv[3])\n"
        "state.eval([3, 1, 4, 1, 5]).tofile(sys.argv[4])\n"
    )
    with pantheon.load(tiny_model, threads=1) as model, model.state() as state:
        state.eval(IDS)
        state.save(tmp_path / "state")
        expected = state.eval(MORE)
    arguments = [tiny_model, isa, tmp_path / "state", tmp_path / "logits"]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True)
    assert (np.fromfile(tmp_path / "logits", np.float32) == expected).all()


@pytest.mark.parametrize("arch", list(FAMILIES))
def test_every_architecture(arch: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", arch)
    model, again = pantheon.load(path, threads=1), pantheon.load(path, threads=2)
    with model, again, model.state() as state, again.state() as other:
        state.eval(IDS)
        state.save(tmp_path / "state")
        other.load(tmp_path / "state")
        assert (other.eval(MORE) == state.eval(MORE)).all()


def test_guesses_made_before_loading_are_void(model: pantheon.Model, tmp_path: Path) -> None:
    with model.state() as state, model.state() as other:
        state.eval(IDS)
        state.save(tmp_path / "state")
        other._speculate(8)
        other.eval([1, 2, 3, 4] * 8)
        for token in (1, 2):
            other._advance_one(token, 20)
        other.load(tmp_path / "state")
        for token in (3, 4, 1, 2):
            other._advance_one(token, 20)
            assert (other.logits == state.eval([token])).all()


# ---- Which model ----


def fingerprint_of(path: str | Path, **how: Any) -> str:
    with pantheon.load(path, **how) as model:
        assert model.fingerprint == model.fingerprint
        return model.fingerprint


def test_the_fingerprint_depends_on_the_weights_alone(tiny_model: str, isa: str, tmp_path: Path) -> None:
    expected = fingerprint_of(tiny_model, threads=1)
    assert len(expected) == 16
    assert fingerprint_of(tiny_model, threads=2, isa=isa, mmap=False) == expected
    renamed = {"general.name": ("Another name", VType.STRING)}
    assert fingerprint_of(write_model(tmp_path / "m.gguf", template="{{ 1 }}", metadata=renamed)) == expected


def test_every_change_of_a_model_changes_its_fingerprint(tmp_path: Path) -> None:
    def variant(**changes: Any) -> str:
        return fingerprint_of(write_model(tmp_path / "m.gguf", dtype="F32", **changes), threads=1)

    plain = variant()
    prints = {plain, *(variant(**change) for change in ({"rope_base": 1e5}, {"seed": 1}, {"n_ctx": 128}))}
    reader = gguf.GGUFReader(write_model(tmp_path / "plain.gguf", dtype="F32"))
    for tensor in reader.tensors:
        values = np.array(tensor.data, np.float32)
        values.flat[-1 if values.ndim == 1 else slice(None)] *= 1.0009765625  # a vector's last value, a whole matrix
        prints.add(variant(tensors={tensor.name: values}))
    assert len(prints) == 4 + len(reader.tensors)


# ---- The file ----


def test_saving_over_a_file_replaces_it_whole(model: pantheon.Model, tmp_path: Path) -> None:
    path = tmp_path / "state"
    with model.state() as state, model.state() as other:
        for n in (150, 3, 80):
            state.reset()
            state.eval(IDS[:n])
            state.save(path)
            other.load(path)
            assert other.tokens.tolist() == IDS[:n]
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_the_old_file(model: pantheon.Model, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with model.state() as state:
        state.eval(IDS)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
        try:
            with pytest.raises(FileError, match="cannot write"):
                state.save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == b"old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
        state.save(path)


KILLED = (
    "import sys, pantheon\n"
    "model = pantheon.load(sys.argv[1], threads=1)\n"
    "state = model.state()\n"
    "state.eval(range(200))\n"
    "print(flush=True)\n"
    "while True:\n"
    "    state.save(sys.argv[2])\n"
)


def test_kill_in_mid_save_leaves_a_whole_file(model: pantheon.Model, tiny_model: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    with model.state() as state:
        state.eval(IDS)
        state.save(path)
        for _ in range(3):
            process = subprocess.Popen([sys.executable, "-c", KILLED, tiny_model, path], stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()
            state.load(path)
            assert state.tokens.tolist() in (IDS, list(range(200)))


def test_two_savers_at_once_leave_one_whole_file(model: pantheon.Model, tmp_path: Path) -> None:
    path = tmp_path / "state"

    def save(ids: list[int]) -> None:
        with model.state() as state:
            state.eval(ids)
            for _ in range(20):
                state.save(path)

    threads = [threading.Thread(target=save, args=(ids,)) for ids in (IDS, MORE)]
    for thread in threads:
        thread.start()
    with model.state() as state:
        while any(thread.is_alive() for thread in threads):
            if path.exists():
                state.load(path)
                assert state.tokens.tolist() in (IDS, MORE)
    for thread in threads:
        thread.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_a_busy_state_is_refused(model: pantheon.Model, tmp_path: Path) -> None:
    with model.state() as state:
        state.eval([1, 2])
        state.save(tmp_path / "state")
        with state._handle.exclusive():  # as during an evaluation in another thread
            for call in (state.save, state.load):
                with pytest.raises(BusyError):
                    call(tmp_path / "state")
        assert state.tokens.tolist() == [1, 2]
    with pytest.raises(pantheon.ClosedError):
        state.save(tmp_path / "state")
