"""Equal bits across processors: the C tests and whole models on AArch64, emulated, against this machine.

    make emulated                             builds what is needed and runs this
    python tests/emulated.py --tools          only say whether the cross compiler and the emulator are here

Two emulated processors take part: one with the dot product instructions and one of the first generation, so that each
kernel set for AArch64 runs. On both the C tests hold every set against the portable one; then small models of every
element type are evaluated by `logit_bits` with every set of every processor, this machine's included, and the digests
of logits and of drawn ids must be the same everywhere. Last, no instruction beyond the baseline may stand outside of
the kernels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOOLS = {
    "aarch64-linux-gnu-objdump": "binutils-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
}


@dataclass(frozen=True)
class Machine:
    """A processor: how a program is started on it, and the instruction sets that must be usable there."""

    name: str
    command: tuple[str, ...]
    programs: Path
    isas: tuple[str, ...] | None  # None: whatever this machine has


# Programs whose work depends on the kernel sets, or on what the processor has; the others need one processor only.
ON_EVERY_PROCESSOR = {"test_kernels", "test_cpu"}
LEFT_OUT = [
    # The emulator ends with an assertion of its own when a process with several threads forks.
    "test_forked_child_without_the_workers_computes_alone_and_frees",
    "test_forked_child_stops_without_the_thread",
    "test_pool_whose_worker_is_on_leave_can_be_freed_and_forked",
    # It does not pass the limit on address space on.
    "test_settle_without_memory_for_a_thread_does_nothing",
    # These assert a duration, of which emulation makes a multiple.
    "test_gguf_parse_is_not_quadratic_in_the_number_of_names",
    "test_gguf_parse_takes_a_vocabulary_of_250000_in_a_blink",
]


def missing_tools() -> list[str]:
    """The Debian packages that bring what is not here."""
    return [packages for tool, packages in TOOLS.items() if shutil.which(tool) is None]


def machines(here: Path, aarch64: Path) -> list[Machine]:
    """This machine and the emulated ones."""

    def emulated(cpu: str, *isas: str) -> Machine:
        return Machine(f"AArch64 ({cpu})", ("qemu-aarch64", "-cpu", cpu), aarch64, isas)

    return [
        Machine("this machine", (), here, None),
        emulated("max", "neon_dot", "neon", "portable"),
        emulated("cortex-a72", "neon", "portable"),
    ]


def run(machine: Machine, program: str, *arguments: str) -> tuple[int, str]:
    """(exit code, both streams) of a program on a machine."""
    done = subprocess.run(
        [*machine.command, machine.programs / program, *arguments],
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "LEAVE_OUT": " ".join(LEFT_OUT)},
    )
    return done.returncode, done.stdout.strip()


# ---- The C tests --------------------------------------------------------------------------------------------------


def run_test(machine: Machine, test: str) -> bool:
    """One C test on one machine; says how it went."""
    start = time.monotonic()
    code, output = run(machine, test)
    last = output.splitlines()[-1] if output else f"no output, exit code {code}"
    if code != 0:
        print(output)
    print(f"{machine.name}: {test}: {last} ({time.monotonic() - start:.0f} s)", flush=True)
    return code == 0


def run_tests(emulated: Sequence[Machine]) -> bool:
    """Every C test on the first emulated machine, those that depend on the processor on each."""
    tests = sorted(path.stem for path in Path(__file__).parent.glob("c/test_*.c"))
    work = [(machine, test) for test in tests for machine in emulated]
    work = [(machine, test) for machine, test in work if machine is emulated[0] or test in ON_EVERY_PROCESSOR]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return all(list(pool.map(lambda item: run_test(*item), work)))


# ---- Whole models -------------------------------------------------------------------------------------------------


def write_models(folder: Path) -> list[Path]:
    """One model for each element type, with sizes that leave rests in every tile; one whose rows meet in threes.

    One whose name makes logit_bits evaluate more ids than attention takes in one span. One of each architecture.
    """
    from family_variants import MIXED, ONE_TYPE
    from tiny_families import TYPES, write_family
    from tiny_gguf import MULTIPLIABLE, write_model

    odd: dict[str, Any] = {"n_embd": 96, "n_head": 8, "n_head_kv": 2, "head_size": 20, "n_ff": 160, "n_vocab": 301}
    three: dict[str, Any] = {"n_embd": 288, "n_head": 9, "n_head_kv": 3, "head_size": 32, "n_ff": 416, "n_vocab": 512}
    paths = [
        write_model(folder / f"{dtype}.gguf", dtype=dtype, n_ctx=2048, tied=False, **odd) for dtype in MULTIPLIABLE
    ]
    paths.append(write_model(folder / "nine-heads.gguf", n_ctx=2048, **three))
    paths.append(write_model(folder / "long.gguf", n_ctx=2048, **{**odd, "n_head": 3, "n_head_kv": 1, "head_size": 32}))
    paths += [variant.write(folder / f"{name}.gguf") for name, variant in MIXED.items()]
    paths += [
        write_family(folder / f"{dtype}.gguf", "llama", dtype=dtype, **ONE_TYPE)
        for dtype in TYPES
        if dtype not in MULTIPLIABLE
    ]
    return [Path(path) for path in paths]


def isas_of(machine: Machine) -> list[str]:
    """The instruction sets that a machine finds usable, which must be those that it is known to have."""
    code, output = run(machine, "logit_bits")
    isas = output.split()
    if code != 0 or (machine.isas is not None and tuple(isas) != machine.isas):
        raise SystemExit(f"{machine.name}: expected the instruction sets {machine.isas}, got {output!r}")
    return isas


def digests(machine: Machine, isa: str, models: Sequence[Path]) -> list[str]:
    """One line for each model."""
    code, output = run(machine, "logit_bits", isa, *map(str, models))
    lines = output.splitlines()
    if code != 0 or len(lines) != len(models):
        raise SystemExit(f"{machine.name}, {isa}: logit_bits failed: {output}")
    return lines


def differences(models: Sequence[Path], results: dict[str, list[str]]) -> Iterator[str]:
    """A sentence for each model and place whose line is not that of the first place."""
    (first, wanted), *others = results.items()
    for place, lines in others:
        for model, want, got in zip(models, wanted, lines, strict=True):
            if want != got:
                yield f"{model.stem}: {first}: {want}\n{' ' * len(model.stem)}  {place}: {got}"


def compare_models(all_machines: Sequence[Machine]) -> bool:
    """Every model with every instruction set of every machine: the same bits."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        models = write_models(Path(folder))
        places = [(machine, isa) for machine in all_machines for isa in isas_of(machine)]
        lines = list(pool.map(lambda place: digests(*place, models), places))
    results = {f"{machine.name}, {isa}": found for (machine, isa), found in zip(places, lines, strict=True)}
    for difference in (found := list(differences(models, results))):
        print(difference)
    print(f"{len(models)} models with {', '.join(results)}: {len(found)} differences")
    return not found


# ---- The baseline -------------------------------------------------------------------------------------------------


def check_baseline(archive: Path) -> bool:
    """No wide instruction outside of the kernels of the core that was built for AArch64."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
    import check_wheel_isa

    outside, inside = check_wheel_isa.scan(check_wheel_isa.disassemble(archive, "aarch64-linux-gnu-objdump"))
    for found in outside:
        print(f"{archive.name}: {found.function}: {found.instruction}")
    print(f"{archive.name}: {inside} instructions beyond the baseline inside of the kernels, {len(outside)} outside")
    return inside > 0 and not outside


def main(arguments: Sequence[str]) -> int:
    """Exit code 0: equal bits everywhere. Arguments: the folders of this machine's and of the AArch64 programs."""
    missing = missing_tools()
    if missing:
        print(f"make emulated needs a cross compiler and an emulator: apt-get install {' '.join(missing)}")
        return 1
    if list(arguments) == ["--tools"]:
        return 0
    here, *emulated = machines(*(Path(argument).resolve() for argument in arguments))
    passed = [
        run_tests(emulated),
        compare_models([here, *emulated]),
        check_baseline(emulated[0].programs / "libpantheon.a"),
    ]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
