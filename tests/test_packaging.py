"""What users get: an sdist that builds, one wheel for all Pythons and all CPUs, and an install that works elsewhere.

The wheel is built once, from the sdist of a clean copy of the tree, under flags that a user or a distribution may have
set: `-march=native` and -mavx2 must not leak into it, -ffast-math must not bend its arithmetic, a missing -O must not
slow it down.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_layers import ROOT, load_tool

import pantheon

isa = load_tool("check_wheel_isa")

IS_LINUX = sys.platform == "linux"
IS_X86 = IS_LINUX and platform.machine() == "x86_64"
HOSTILE_FLAGS = "-g -march=native -ffast-math -funsafe-math-optimizations"
if IS_X86:
    HOSTILE_FLAGS += " -mavx2 -mfma -mf16c -mavx512f -mbmi2 -mlzcnt -mpopcnt"
IS_AARCH64 = IS_LINUX and platform.machine() == "aarch64"
NOT_SHIPPED = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "*.egg-info", "*.so", "*.o", "__pycache__", ".*_cache", ".hypothesis"
)


def run(
    command: Sequence[str | os.PathLike[str]], env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """What a command prints, both streams; its failure is the test's."""
    done = subprocess.run(
        command, env=env, cwd=cwd, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def plain_environment(**changes: str) -> dict[str, str]:
    """The environment without what would bend a build or an import."""
    unwanted = {"USE_BLAS", "PYTHONPATH", "LD_PRELOAD", "CFLAGS", "LDFLAGS", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"}
    return {**{key: value for key, value in os.environ.items() if key not in unwanted}, **changes}


@dataclass(frozen=True)
class Built:
    """The results of one build."""

    sdist: Path
    wheel: Path
    core: Path
    log: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("packaging")
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_SHIPPED)
    out = folder / "dist"
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, folder / "tree"]
    log = run(command, env=plain_environment(CFLAGS=HOSTILE_FLAGS), cwd=folder)
    (sdist,) = out.glob("*.tar.gz")
    wheels = list(out.glob("*.whl"))
    assert len(wheels) == 1
    with zipfile.ZipFile(wheels[0]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        core = Path(archive.extract(name, folder / "wheel"))
    return Built(sdist, wheels[0], core, log)


def test_python_and_c_and_the_project_file_name_one_version() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stated = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    assert stated is not None
    assert pantheon.__version__ == stated.group(1)


@pytest.mark.packaging
def test_the_wheel_is_one_for_all_pythons_from_3_10(built: Built) -> None:
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("a free-threaded Python has no stable ABI")
    assert built.wheel.name.split("-")[2:4] == ["cp310", "abi3"]
    assert built.core.name == "_core.abi3.so"


@pytest.mark.packaging
def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        inside = {name for name in archive.namelist() if not name.startswith("pantheon-")}
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pantheon").rglob("*")
        if path.is_file() and not re.search(r"/(__pycache__|\.\w+_cache)/|\.so$", path.as_posix())
    }
    assert inside == source | {f"pantheon/{built.core.name}", "pantheon_main.py"}
    assert "pantheon/py.typed" in inside


@pytest.mark.packaging
def test_the_sdist_holds_all_that_building_and_testing_take(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"build_ffi.py", "Makefile", "LICENSE", "CHANGELOG.md", "README.md", "tests/c/check.h"}
    for folder, pattern in (("csrc", "*.[ch]"), ("tests", "*.py"), ("tests", "*.c"), ("tools", "*.py")):
        wanted |= {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob(pattern)}
    assert wanted - inside == set()


@pytest.mark.packaging
def test_flags_of_the_environment_do_not_replace_ours(built: Built) -> None:
    lines = [line for line in built.log.splitlines() if re.search(r" -c csrc/\S+\.c ", line)]
    assert len(lines) == len(list((ROOT / "csrc").rglob("*.c")))
    for line in lines:
        words = line.split()
        assert "-march=native" in words  # the trap was set
        assert [word for word in words if word.startswith("-O")][-1] == "-O3"
        assert {"-DNDEBUG", "-ffp-contract=off", "-fvisibility=hidden", "-std=c11"} <= set(words)
        if IS_X86:
            assert [word for word in words if word.startswith("-march")][-1] == "-march=x86-64"
            assert words.index("-mavx2") < words.index("-mno-avx")
        if IS_AARCH64:
            assert [word for word in words if word.startswith("-march")][-1] == "-march=armv8-a"
        assert words.index("-ffast-math") < words.index("-fno-fast-math")


@pytest.mark.packaging
@pytest.mark.skipif(not (IS_X86 or IS_AARCH64), reason="the check knows x86-64 and AArch64 on Linux")
def test_no_wide_instruction_stands_outside_of_the_kernels(built: Built) -> None:
    assert isa.check(built.wheel) == []


@pytest.mark.packaging
@pytest.mark.skipif(not IS_LINUX, reason="reads ELF")
def test_loading_the_extension_does_not_make_the_process_flush_denormals(built: Built) -> None:
    assert "set_fast_math" not in run(["nm", built.core])
    (link,) = (line for line in built.log.splitlines() if " -shared " in line and "_core" in line)
    assert "-ffast-math" in link  # the trap was set


@pytest.mark.packaging
@pytest.mark.skipif(not IS_LINUX, reason="reads ELF")
def test_the_extension_exports_one_symbol_and_needs_the_c_library_alone(built: Built) -> None:
    symbols = run(["nm", "-D", "--defined-only", built.core]).split()
    assert [word for word in symbols if re.match(r"[A-Za-z_]{2}", word)] == ["PyInit__core"]
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run(["readelf", "-d", built.core]))
    assert {name.partition(".so")[0] for name in needed} <= {"libc", "libm", "libpthread", f"ld-linux-{_machine()}"}


def _machine() -> str:
    return platform.machine().replace("_", "-")


ELSEWHERE = """
import sys, pathlib, pantheon
assert pathlib.Path(pantheon.__file__).is_relative_to(sys.prefix), pantheon.__file__
for isa in (None, "portable"):
    with pantheon.load(sys.argv[1], isa=isa) as model:
        print("logits", model.logits([1, 2, 3]).tobytes().hex())
        print("generated", model.generate([1, 2, 3], max_tokens=5).tokens)
"""


@pytest.mark.packaging
def test_the_wheel_in_a_fresh_environment_computes_the_same_bits_and_the_same_reply(
    built: Built, tmp_path: Path, tiny_model: str
) -> None:
    environment = plain_environment()
    run([sys.executable, "-m", "venv", tmp_path / "fresh"], env=environment)
    bin_folder = tmp_path / "fresh" / "bin"
    run([bin_folder / "python", "-m", "pip", "install", "--quiet", built.wheel], env=environment)
    model = os.path.abspath(tiny_model)
    there = run([bin_folder / "python", "-c", ELSEWHERE, model], env=environment, cwd=tmp_path)
    with pantheon.load(model) as here:
        assert there.count(f"logits {here.logits([1, 2, 3]).tobytes().hex()}\n") == 2
        assert there.count(f"generated {here.generate([1, 2, 3], max_tokens=5).tokens}\n") == 2
    version = f"pantheon, version {pantheon.__version__}\n"
    assert run([bin_folder / "pantheon", "--version"], env=environment, cwd=tmp_path) == version
    assert run([bin_folder / "python", "-m", "pantheon", "--version"], env=environment, cwd=tmp_path) == version


def test_blas_without_its_header_is_one_sentence_with_the_cure(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "build_ffi.py", "cflags"],
        env=plain_environment(USE_BLAS="1", CC=shutil.which("false") or "false", PATH=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"USE_BLAS=1 needs OpenBLAS, .*libopenblas-dev.*\n", done.stderr)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_refuses_a_wheel_with_blas_before_it_does_anything(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    done = subprocess.run(
        ["make", "wheel", "USE_BLAS=1", "PYTHON=false"],
        cwd=tmp_path,
        env=plain_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith("A wheel with USE_BLAS=1 would claim to be portable")
    assert not (tmp_path / ".venv").exists()


# ---- The tool itself ----------------------------------------------------------------------------------------------

WIDE = """
#include <immintrin.h>
#define AVX2 __attribute__((target("avx2,f16c")))
AVX2 void add_avx2(float *x) { _mm256_storeu_ps(x, _mm256_add_ps(_mm256_loadu_ps(x), _mm256_loadu_ps(x))); }
__attribute__((target("sse4.1"))) int stray_sse4(const __m128i *x) { return _mm_testz_si128(*x, *x); }
AVX2 void stray_avx(float *x) { _mm256_storeu_ps(x, _mm256_sqrt_ps(_mm256_loadu_ps(x))); }
float plain(const float *x, int n) { float s = 0; for (int i = 0; i < n; i++) s += x[i]; return s; }
"""


@pytest.mark.skipif(not IS_X86, reason="the check knows x86-64 on Linux")
def test_the_check_finds_strays_and_leaves_kernels_and_the_baseline_alone(tmp_path: Path) -> None:
    (tmp_path / "wide.c").write_text(WIDE)
    run([os.environ.get("CC", "cc"), "-O2", "-fPIC", "-shared", tmp_path / "wide.c", "-o", tmp_path / "wide.so"])
    outside, inside = isa.scan(isa.disassemble(tmp_path / "wide.so"))
    assert {found.function for found in outside} == {"stray_sse4", "stray_avx"}
    assert inside >= 2


@pytest.mark.skipif(not IS_X86, reason="the check knows x86-64 on Linux")
def test_the_check_does_not_call_clean_what_it_cannot_see(tmp_path: Path) -> None:
    (tmp_path / "plain.c").write_text("int plain(int x) { return x + 1; }\n")
    run([os.environ.get("CC", "cc"), "-fPIC", "-shared", tmp_path / "plain.c", "-o", tmp_path / "plain.so"])
    assert ["no kernel found" in problem for problem in isa.check(tmp_path / "plain.so")] == [True]


AARCH64_LISTING = """
core.so:     file format elf64-littleaarch64

0000000000000000 <matmul_q8_neon_dot.part.0>:
   0:\t4f80e000 \tsdot\tv0.4s, v0.16b, v0.4b[0]

0000000000000010 <matmul_q8_neon>:
  10:\t0e217800 \tfcvtl\tv0.4s, v1.4h
  14:\t0e208020 \tsmlal\tv0.8h, v1.8b, v0.8b
  18:\t33001c20 \tbfxil\tw0, w1, #0, #8

0000000000000020 <__aarch64_cas8_acq_rel>:
  20:\tc8e0fc41 \tcasal\tx0, x1, [x2]

0000000000000030 <stray>:
  30:\t4f80e000 \tsdot\tv0.4s, v0.16b, v0.4b[0]
  34:\t0e401400 \tfadd\tv0.4h, v0.4h, v0.4h
  38:\t65800000 \tfadd\tz0.s, z0.s, z0.s
  3c:\tb8e10000 \tldaddal\tw1, w0, [x0]
"""


def test_the_check_finds_strays_in_a_listing_of_aarch64() -> None:
    outside, inside = isa.scan(AARCH64_LISTING)
    assert {found.function for found in outside} == {"stray"}
    assert [found.instruction.split("\t")[0] for found in outside] == ["sdot", "fadd", "fadd", "ldaddal"]
    assert inside == 2


@pytest.mark.parametrize("target", ["linux-x86_64", "linux-aarch64"])
def test_a_cross_build_gets_the_flags_of_its_target(target: str) -> None:
    command = [sys.executable, ROOT / "build_ffi.py", "cflags"]
    words = run(command, env=plain_environment(_PYTHON_HOST_PLATFORM=target)).split()
    baseline = {"linux-x86_64": "-march=x86-64", "linux-aarch64": "-march=armv8-a"}
    assert [word for word in words if word.startswith("-march")] == [baseline[target]]
    assert ("-mno-avx" in words) == (target == "linux-x86_64")
    assert "-ffp-contract=off" in words
