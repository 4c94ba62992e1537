#!/usr/bin/env python3
"""Check that wide instructions stand in the kernels alone: one elsewhere would crash an older CPU.

    python tools/check_wheel_isa.py dist/pantheon-...whl        or a shared object

The kernels are the functions whose name ends in the name of an instruction set (matmul_q8_0_avx2); they run only on a
CPU that was asked first. Outside of them these count as wide:

x86-64: an instruction that is encoded with a VEX or EVEX prefix (AVX and all that follow it) or lies in the opcode maps
0F 38 and 0F 3A (SSSE3, SSE4, AES, ...), whatever its name.

AArch64: a dot or matrix product, an atomic operation of ARMv8.1, arithmetic of 16-bit floats, and whatever uses the
registers of SVE. The compiler's own functions __aarch64_... ask the CPU themselves.

Needs objdump for the machine, and symbols in the shared object.
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
KERNEL = re.compile(r"_(avx2|avx512\w*|avxvnni\w*|neon_dot)(\.[a-z_]+(\.\d+)?)*$|^__aarch64_\w+$")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\t((?:[0-9a-f]{2} )+)\s*\t?(.*)$")
INSTRUCTION_AARCH64 = re.compile(r"^\s*[0-9a-f]+:\t[0-9a-f]{8} \t(.*)$")
WIDE_AARCH64 = re.compile(
    r"^(us|su|u|s|bf)(dot|mmla)\t|^bf(cvt|mlal)|^f(?!cvt)\w+\t.*(\.[48]h|\bh\d)"  # products, 16-bit floats
    r"|^(ld|st)(add|clr|eor|set|[su]max|[su]min)(a|l|al)?[bh]?\t|^(cas|swp)p?(a|l|al)?[bh]?\t"  # atomics of ARMv8.1
    r"|\bz\d+\.[bhsdq]|\bp\d+/[zm]"  # SVE
)
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


def wide_of_x86(line: str) -> str | None:
    """The instruction of a line of the listing, if it is a wide one."""
    match = INSTRUCTION.match(line)
    return match.group(2) if match and is_wide(bytes.fromhex(match.group(1))) else None


def wide_of_aarch64(line: str) -> str | None:
    """The same of AArch64, by names and registers."""
    match = INSTRUCTION_AARCH64.match(line)
    return match.group(1) if match and WIDE_AARCH64.search(match.group(1)) else None


def scan(listing: str) -> tuple[list[Found], int]:
    """(wide instructions outside of the kernels, number of wide instructions inside) of objdump's listing."""
    function = "?"
    outside: list[Found] = []
    inside = 0
    wide_text = wide_of_aarch64 if "aarch64" in listing[:500] else wide_of_x86
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            function = match.group(1)
        elif instruction := wide_text(line):
            if KERNEL.search(function):
                inside += 1
            else:
                outside.append(Found(function, instruction))
    return outside, inside


def disassemble(file: Path, objdump: str = "objdump") -> str:
    """objdump's listing with the bytes of each instruction on one line."""
    command = [objdump, "-d", "-w", str(file)]
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
            if not re.search("x86-64|aarch64", listing[:500]):
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
