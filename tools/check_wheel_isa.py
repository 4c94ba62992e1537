#!/usr/bin/env python3
"""Check that wide x86-64 instructions stand in the kernels alone: one elsewhere would crash an older CPU.

    python tools/check_wheel_isa.py dist/pantheon-...whl        or a shared object

The kernels are the functions whose name ends in the name of an instruction set (matmul_q8_0_avx2); they run only on a
CPU that was asked first. Outside of them an instruction counts as wide if it is encoded with a VEX or EVEX prefix (AVX
and all that follow it) or lies in the opcode maps 0F 38 and 0F 3A (SSSE3, SSE4, AES, ...), whatever its name. Needs
objdump, and symbols in the shared object. On other machines than x86-64 there is nothing to check.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# GCC splits functions and adds endings of its own: .cold, .part.0, .constprop.1.
KERNEL = re.compile(r"_(avx2|avx512\w*|avxvnni\w*)(\.[a-z_]+(\.\d+)?)*$")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t((?:[0-9a-f]{2} )+)\s*\t?(.*)$")
SEGMENT_PREFIXES = {0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x67}
LEGACY_PREFIXES = SEGMENT_PREFIXES | {0x66, 0xF0, 0xF2, 0xF3}


class Found(NamedTuple):
    """One wide instruction: the function that it stands in, and its text."""

    function: str
    instruction: str


def is_wide(code: bytes) -> bool:
    """Whether the bytes of one instruction go beyond the baseline of x86-64."""
    start = 0
    while start < len(code) and code[start] in SEGMENT_PREFIXES:
        start += 1
    if code[start : start + 1] in (b"\xc4", b"\xc5", b"\x62"):  # in 64-bit code always VEX or EVEX
        return True
    while start < len(code) and code[start] in LEGACY_PREFIXES:
        start += 1
    if start < len(code) and code[start] & 0xF0 == 0x40:  # REX
        start += 1
    return code[start : start + 2] in (b"\x0f\x38", b"\x0f\x3a")


def scan(listing: str) -> tuple[list[Found], int]:
    """(wide instructions outside of the kernels, number of wide instructions inside) of objdump's listing."""
    function = "?"
    outside: list[Found] = []
    inside = 0
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            function = match.group(1)
        elif (match := INSTRUCTION.match(line)) and is_wide(bytes.fromhex(match.group(1))):
            if KERNEL.search(function):
                inside += 1
            else:
                outside.append(Found(function, match.group(2)))
    return outside, inside


def disassemble(shared_object: Path) -> str:
    """objdump's listing with the bytes of each instruction on one line."""
    command = ["objdump", "-d", "-w", str(shared_object)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def shared_objects(path: Path, folder: Path) -> Iterator[Path]:
    """The file itself, or the shared objects inside a wheel."""
    if path.suffix != ".whl":
        yield path
        return
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if name.endswith(".so"):
                yield Path(wheel.extract(name, folder))


def check(path: Path) -> list[str]:
    """What is wrong with a wheel or shared object, one sentence each."""
    if shutil.which("objdump") is None:
        return ["objdump is missing (it comes with binutils)"]
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        objects = list(shared_objects(path, Path(folder)))
        if not objects:
            problems.append(f"{path.name} holds no shared object")
        for shared_object in objects:
            listing = disassemble(shared_object)
            if "x86-64" not in listing[:500]:
                continue
            outside, inside = scan(listing)
            problems += [f"{shared_object.name}: {found.function}: {found.instruction}" for found in outside]
            if not inside:
                problems.append(
                    f"{shared_object.name}: no kernel found; stripped of its symbols, or the check is blind"
                )
    return problems


def main(arguments: list[str]) -> int:
    """Exit code 0: clean."""
    if not arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    problems = [problem for argument in arguments for problem in check(Path(argument))]
    for problem in problems[:50]:
        print(problem)
    if len(problems) > 50:
        print(f"... and {len(problems) - 50} more")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
