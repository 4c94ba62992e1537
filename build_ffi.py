"""What setuptools compiles: the marked part of csrc/pantheon.h as cffi declarations, the list of sources, the flags.

Executed by cffi's setuptools hook (see setup.py), never imported by the package, so it stays one file. The Makefile
asks it for the flags of the C tests: `python build_ffi.py cflags` and `... ldflags` print them, one per line.

The one thing to know first: our flags come after those of the environment and of Python. -O3 -DNDEBUG, because a user's
CFLAGS replace Python's own and would leave the kernels unoptimized; the -march of the baseline and the -mno- flags,
because a user's -march=native or -mavx2 would put wide instructions outside of the kernels, where no check of the CPU
guards them (the kernels switch them on again, function by function); -fno-fast-math, because equal bits and NaN checks
die of it, and at the link too, because there it would bring code that makes the whole process flush denormals.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from glob import glob
from typing import Any

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))  # no stable ABI there before 3.15
USE_BLAS = os.environ.get("USE_BLAS", "") not in ("", "0")

STRICT_MATH = ["-O3", "-fno-fast-math", "-fno-unsafe-math-optimizations"]  # -O3 also stands against an -Ofast
FLAGS = ["-std=c11", "-D_GNU_SOURCE", *STRICT_MATH, "-DNDEBUG", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]
PLATFORM = sysconfig.get_platform()  # what is built for; a cross build says it in _PYTHON_HOST_PLATFORM
if PLATFORM == "linux-x86_64":
    FLAGS += ["-march=x86-64", "-mtune=generic", "-mno-sse3", "-mno-avx"]
    FLAGS += ["-mno-bmi", "-mno-bmi2", "-mno-lzcnt", "-mno-popcnt"]  # not part of the two above
elif PLATFORM == "linux-aarch64":
    FLAGS += ["-march=armv8-a", "-mtune=generic"]

# Python's own function that C may call; pantheon/_native/base.py defines it.
CALLBACKS = """
extern "Python" int pn_py_progress(void *, double);
"""
REGION = re.compile(r"/\* --- ffi begin --- \*/(.*)/\* --- ffi end --- \*/", re.DOTALL)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def read_declarations(header: str) -> str:
    """The declarations between the two marker lines of a header, without comments, plus the callback."""
    with open(header, encoding="utf-8") as file:
        region = REGION.search(file.read())
    if region is None:
        raise SystemExit(f"{header} has lost its marker lines '--- ffi begin ---' and '--- ffi end ---'")
    return COMMENT.sub(" ", region.group(1)) + CALLBACKS


def find_blas() -> tuple[list[str], list[str]]:
    """Compile and link flags for OpenBLAS; ends the build with one sentence if its header cannot be found."""
    cflags: list[str] = []
    ldflags = ["-lopenblas"]
    if shutil.which("pkg-config") and subprocess.run(["pkg-config", "--exists", "openblas"]).returncode == 0:
        cflags, ldflags = (
            shlex.split(subprocess.run(["pkg-config", kind, "openblas"], check=True, text=True, stdout=-1).stdout)
            for kind in ("--cflags", "--libs")
        )
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    probe = subprocess.run(
        [*compiler, *cflags, "-E", "-x", "c", "-"], input="#include <cblas.h>\n", text=True, stdout=-3, stderr=-3
    )
    if probe.returncode != 0:
        raise SystemExit(
            "USE_BLAS=1 needs OpenBLAS, but its header cblas.h cannot be found: install it (Debian, Ubuntu: "
            "apt-get install libopenblas-dev; Fedora: dnf install openblas-devel), or build without USE_BLAS."
        )
    return ["-DPN_USE_BLAS", *cflags], ldflags


def flags() -> tuple[list[str], list[str]]:
    """(compile, link): what every C file of the core is built with, and what links it."""
    blas_cflags, blas_ldflags = find_blas() if USE_BLAS else ([], [])
    return [*FLAGS, *blas_cflags], [*STRICT_MATH, "-pthread", *blas_ldflags, "-lm"]


def check_headers() -> None:
    """End the build with one sentence if this Python came without its header files."""
    header = os.path.join(sysconfig.get_path("include"), "Python.h")
    compiles = not {"egg_info", "dist_info", "sdist"} & set(sys.argv)
    if compiles and not os.path.exists(header):
        raise SystemExit(
            f"Python's own header files are missing ({header}): install them "
            "(Debian, Ubuntu: apt-get install python3-dev; Fedora: dnf install python3-devel)."
        )


def ffibuilder() -> Any:
    """The FFI object that cffi's setuptools hook asks for."""
    from cffi import FFI

    check_headers()
    cflags, ldflags = flags()
    builder = FFI()
    builder.cdef(read_declarations("csrc/pantheon.h"))
    builder.set_source(
        "pantheon._core",
        '#include "pantheon.h"',
        sources=sorted(glob("csrc/*.c") + glob("csrc/kernels/*.c")),
        depends=["build_ffi.py", *sorted(glob("csrc/*.h") + glob("csrc/kernels/*.h"))],
        include_dirs=["csrc"],
        extra_compile_args=cflags,
        extra_link_args=ldflags,
        py_limited_api=not FREE_THREADED,
    )
    return builder


if __name__ == "__main__":
    print("\n".join(shlex.quote(flag) for flag in flags()[sys.argv[1:] == ["ldflags"]]))
