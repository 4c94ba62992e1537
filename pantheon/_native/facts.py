"""Facts about the build and the machine. Rank 1: imports its sibling base."""

from __future__ import annotations

from pantheon._native.base import check, ffi, lib


def version() -> str:
    """The version of the C core, "0.1.0"."""
    return bytes(ffi.string(lib.pn_version())).decode("ascii")


def has_blas() -> bool:
    """True if this build can evaluate prompts through BLAS."""
    return bool(lib.pn_has_blas())


def isa_available() -> list[str]:
    """The instruction sets that this machine can run, best first."""
    return bytes(ffi.string(lib.pn_isa_available())).decode("ascii").split()


def default_threads() -> tuple[int, str]:
    """How many threads a model uses by default, and one line on where the number comes from."""
    why = ffi.new("char[]", 256)
    count = int(lib.pn_default_threads(why, 256))
    return count, bytes(ffi.string(why)).decode("utf-8", "replace")


def known(what: str) -> list[str]:
    """A list of what this build knows, in the order of its table.

    what: "architectures", "types" (readable), "matrix_types", "targets" (of quantize), "tokenizers", "pretokenizers".
    """
    number = int(getattr(lib, "PN_KNOWN_" + what.upper()))
    names: list[str] = []
    while (name := lib.pn_known(number, len(names))) != ffi.NULL:
        names.append(bytes(ffi.string(name)).decode("ascii"))
    return names


def read_bandwidth(threads: int, n_bytes: int, runs: int) -> float:
    """Bytes per second at which `threads` read a buffer of n_bytes (1 MiB to 32 GiB) together, median of `runs`."""
    rate = ffi.new("double *")
    check(lib.pn_read_bandwidth(threads, n_bytes, runs, rate))
    return float(rate[0])
