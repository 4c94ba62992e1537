# Everything that a developer or a user types. `make help` lists the targets.
#
# PYTHON=python3.12   the Python that .venv is made from        USE_BLAS=1   link OpenBLAS (prompts may go through it)
# CC=clang            the C compiler                            ARGS=...     passed on by chat, test, bench and conformance
#
# All work happens in .venv (packages) and build/ (objects); the package is installed in place, so Python edits are live
# and C edits need `make build`. Stamp files say what is done already: the network is touched only when a requirement
# is new. Build output goes to stderr: stdout belongs to the replies. Paths are relative, so folders may hold spaces.

PYTHON   ?= python3
USE_BLAS ?=
ARGS     ?=
SHELL    := /bin/sh
MAKEFLAGS += --no-print-directory --no-builtin-rules
export USE_BLAS CC

BIN  := .venv/bin
PIP  := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
JOBS := $(shell nproc 2>/dev/null || echo 2)

C_SOURCES  := $(wildcard csrc/*.c csrc/kernels/*.c)
C_HEADERS  := $(wildcard csrc/*.h csrc/kernels/*.h)
C_TESTS    := $(patsubst tests/c/%.c,%,$(wildcard tests/c/test_*.c))
C_PROGRAMS := $(C_TESTS) logit_bits
WARNINGS   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wvla -Wconversion \
              -Werror=incompatible-pointer-types

.DEFAULT_GOAL := help
.PHONY: help chat test build wheel lint asan emulated conformance bench bench-kernels clean distclean without-blas c-tests
.PHONY: asan-c asan-python recorded check-recorded FORCE

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS='	' read -r name text; do \
	    printf '  make %-13s %s\n' "$$name" "$$text"; done

chat: build ## talk with SmolLM2-135M-Instruct (the first time: install, fetch the model); ARGS goes to `pantheon chat`
	@$(BIN)/pantheon pull smollm2 </dev/null >&2
	@exec $(BIN)/pantheon chat smollm2 $(ARGS)

test: build .venv/.test ## run all tests: C first, then pytest; ARGS goes to pytest
	@$(MAKE) c-tests >&2
	@exec $(BIN)/pytest $(ARGS)

build: .venv/.package ## build the C core and install the package in place (the inner loop after a C edit)

wheel: without-blas .venv/.test ## build dist/: the sdist, and from it one abi3 wheel
	@rm -rf dist && $(BIN)/pyproject-build --no-isolation --outdir dist . >&2
	@$(BIN)/python tools/check_wheel_isa.py dist/*.whl && ls dist >&2

without-blas:
ifneq ($(filter-out 0,$(USE_BLAS)),)
	@echo 'A wheel with USE_BLAS=1 would claim to be portable, yet need libopenblas where it is installed:' \
	    'leave USE_BLAS out, or install from the sources there.' >&2; exit 1
endif

lint: .venv/.dev ## ruff, mypy --strict, clang-format, C warnings, direction of includes, sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pantheon pantheon_main.py
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCES) $(C_HEADERS) $(wildcard tests/c/*.[ch] examples/*.[ch])
	$(CC) $$($(BIN)/python build_ffi.py cflags) $(WARNINGS) -Werror -fsyntax-only -Icsrc $(C_SOURCES)
	$(BIN)/python tools/check_layers.py
	$(BIN)/python tools/check_sizes.py

asan: asan-c asan-python ## C tests and pytest under AddressSanitizer and UndefinedBehaviorSanitizer

emulated: .venv/.test ## the same bits on AArch64: C tests and whole models, cross-compiled and emulated
	@$(BIN)/python tests/emulated.py --tools
	@$(MAKE) -j$(JOBS) build/c/logit_bits >&2
	@$(MAKE) -j$(JOBS) $(C_PROGRAMS:%=build/aarch64/%) OBJ=build/aarch64 COMPILER=aarch64-linux-gnu-gcc \
	    AR=aarch64-linux-gnu-ar PLATFORM=linux-aarch64 EXTRA=-static >&2
	@exec $(BIN)/python tests/emulated.py build/c build/aarch64

conformance: build .venv/.test ## other people's vocabularies and chat templates, fetched once: ids and prompts as theirs
	@exec $(BIN)/python tests/conformance.py $(ARGS)

recorded: build ## make what the page shows before a model is there anew, with the real engine
	@$(BIN)/pantheon pull smollm2 </dev/null >&2
	@mkdir -p build && $(BIN)/pantheon record smollm2 >build/recorded.json
	@mv build/recorded.json pantheon/web/static/recorded.json

check-recorded: build ## hold all recorded conversations again: the file must be what the engine says, bit for bit
	@$(BIN)/pantheon pull smollm2 </dev/null >&2
	@exec $(BIN)/pantheon record smollm2 --check pantheon/web/static/recorded.json

bench: build .venv/.test ## measure speed beside another engine (benchmarks/); ARGS is passed on
	@exec $(BIN)/python benchmarks/compare.py $(ARGS)

bench-kernels: .venv/.run ## measure the inner loops alone, each instruction set that runs here
	@$(MAKE) -j$(JOBS) $(OBJ)/bench_kernels && $(OBJ)/bench_kernels $(ARGS)

clean: ## remove what was built; .venv keeps its packages
	@rm -rf build dist *.egg-info pantheon/_core*.so .venv/.package
	@rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache
	@find pantheon tests tools benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv too
	@rm -rf .venv

# ---- .venv ---------------------------------------------------------------------------------------------------------
# An environment knows its own absolute path: in a folder that was moved it is made anew.

ifneq ($(shell cat .venv/.place 2>/dev/null),$(CURDIR))
.venv/.place: FORCE
endif
.venv/.place:
	@$(PYTHON) tools/check_machine.py '$(CC)' </dev/null >&2
	@rm -rf .venv && $(PYTHON) -m venv .venv </dev/null >&2
	@pwd >$@

.venv/.run: .venv/.place pyproject.toml tools/list_requirements.py
	@echo 'installing requirements into .venv ...' >&2
	@$(BIN)/python tools/list_requirements.py build run >$@.txt && $(PIP) install -r $@.txt </dev/null >&2
	@touch $@

.venv/.dev: .venv/.run
	@echo 'installing the tools of development ...' >&2
	@$(BIN)/python tools/list_requirements.py dev >$@.txt && $(PIP) install -r $@.txt </dev/null >&2
	@touch $@

.venv/.test: .venv/.run
	@echo 'installing the requirements of the tests ...' >&2
	@$(BIN)/python tools/list_requirements.py test >$@.txt && $(PIP) install -r $@.txt </dev/null >&2
	@touch $@

# ---- The package ---------------------------------------------------------------------------------------------------
# build/settings changes only when a setting does, and whatever depends on it is built again then.

build/settings: FORCE
	@mkdir -p build && { [ "$$(cat $@ 2>/dev/null)" = '$(CC) $(CFLAGS) $(USE_BLAS)' ] || \
	    printf '%s\n' '$(CC) $(CFLAGS) $(USE_BLAS)' >$@; }

ifeq ($(wildcard pantheon/_core*.so),)
.venv/.package: FORCE
endif
.venv/.package: .venv/.run build/settings pyproject.toml setup.py build_ffi.py $(C_SOURCES) $(C_HEADERS)
	@$(BIN)/python build_ffi.py cflags >/dev/null
	@echo 'building pantheon ...' >&2
	@$(PIP) install --no-deps --no-build-isolation --editable . </dev/null >&2
	@touch $@

# ---- C tests -------------------------------------------------------------------------------------------------------
# All of the core in one archive, one program per tests/c/test_*.c. OBJ is the folder of one build of them all, EXTRA
# are its flags; COMPILER, AR and PLATFORM (as Python spells it, linux-aarch64) make it one for another machine. Loops
# of the programs themselves stay plain: gcc 12 for AArch64 ends with an internal error over two of them.

OBJ      ?= build/c
EXTRA    ?=
COMPILER ?= $(CC)
PLATFORM ?=
TEST_FLAGS := -fno-tree-vectorize -Itests/c

c-tests: .venv/.run ## build and run the C tests alone
	@$(MAKE) -j$(JOBS) $(C_TESTS:%=$(OBJ)/%)
	@for test in $(C_TESTS); do printf '%s: ' "$$test"; $(OBJ)/$$test || exit 1; done

$(OBJ)/flags: .venv/.run build_ffi.py build/settings
	@mkdir -p $(OBJ)/csrc/kernels
	@$(BIN)/python build_ffi.py ldflags >$(OBJ)/ldflags
	@$(PLATFORM:%=_PYTHON_HOST_PLATFORM=%) $(BIN)/python build_ffi.py cflags | grep -v DNDEBUG >$@
	@printf '%s\n' -UNDEBUG -Icsrc $(WARNINGS) $(EXTRA) >>$@

$(OBJ)/%.o: %.c $(OBJ)/flags
	@$(COMPILER) $(CFLAGS) @$(OBJ)/flags -MMD -MP -c $< -o $@

$(OBJ)/libpantheon.a: $(C_SOURCES:%.c=$(OBJ)/%.o)
	@rm -f $@ && $(AR) rcs $@ $^

$(C_PROGRAMS:%=$(OBJ)/%): $(OBJ)/%: tests/c/%.c $(OBJ)/libpantheon.a
	@$(COMPILER) $(CFLAGS) @$(OBJ)/flags $(TEST_FLAGS) -MMD -MP -MF $@.d $< $(OBJ)/libpantheon.a @$(OBJ)/ldflags -o $@

$(OBJ)/bench_%: benchmarks/bench_%.c $(OBJ)/libpantheon.a
	@$(COMPILER) $(CFLAGS) @$(OBJ)/flags -MMD -MP -MF $@.d $< $(OBJ)/libpantheon.a @$(OBJ)/ldflags -o $@

-include $(wildcard $(OBJ)/csrc/*.d $(OBJ)/csrc/kernels/*.d $(OBJ)/*.d)

# ---- Sanitizers ----------------------------------------------------------------------------------------------------
# A build of its own below build/asan; the package in place is not touched, and PYTHONSAFEPATH keeps the tests' own
# child processes from it (from Python 3.11 on). Python itself leaks on purpose, C may not.

ASAN_FLAGS := -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer

asan-c: .venv/.run
	@UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1 \
	    $(MAKE) c-tests OBJ=build/asan/c EXTRA='$(ASAN_FLAGS)' >&2

asan-python: build/asan/python/.built .venv/.test
	@rm -f build/asan/report.*; \
	asan=$$($(CC) -print-file-name=libasan.so) ubsan=$$($(CC) -print-file-name=libubsan.so); \
	LD_PRELOAD="$$asan $$ubsan" PYTHONPATH='$(CURDIR)/build/asan/python/lib' PYTHONSAFEPATH=1 PYTHONMALLOC=malloc \
	    ASAN_OPTIONS='detect_leaks=0:log_path="$(CURDIR)/build/asan/report"' \
	    UBSAN_OPTIONS='print_stacktrace=1:log_path="$(CURDIR)/build/asan/report"' \
	    $(BIN)/pytest -m 'not packaging and not timing' -p no:cacheprovider $(ARGS); \
	status=$$?; cat build/asan/report.* >&2 2>/dev/null; exit $$status

build/asan/python/.built: .venv/.run build/settings setup.py build_ffi.py $(C_SOURCES) $(C_HEADERS) \
    pantheon_main.py $(wildcard pantheon/*.py pantheon/*/*.py)
	@echo 'building pantheon with sanitizers ...' >&2
	@CFLAGS='$(ASAN_FLAGS)' LDFLAGS='-fsanitize=address,undefined' $(BIN)/python setup.py --quiet build \
	    --build-temp build/asan/python/tmp --build-lib build/asan/python/lib --force >&2
	@touch $@
