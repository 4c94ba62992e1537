#!/usr/bin/env python3
"""Check the direction of includes and imports: a file may use files of a lower rank, nothing else.

    python tools/check_layers.py            the whole tree: one line per offence, exit code 1 if there is any
    python tools/check_layers.py --table    the ranks as a Markdown table, for docs/architecture.md

C: a file may include its own header, and headers of a lower rank (those of rank 0 also each other). A file gguf_get.c
is a part of the room gguf. The kernels are a room of their own with an even shorter list.

Python: a module may import modules of a lower rank; the modules of one folder are one room, they may import each other
as long as no circle comes about (those of rank 0 too). Imports under TYPE_CHECKING are for the type checker and count
for nothing.

Where the opening comment of a file names its rank, it must be the one of the table.

A new file needs a line in one of the two tables below: the station of the pipeline that it is about.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Rank and files (without suffix) of csrc/, the order of the data's way.
C_RANKS: list[tuple[int, str, str]] = [
    (0, "common status pantheon", "checked arithmetic, the thread's last failure, the public API"),
    (1, "map unicode unicode_tables normalize_tables", "a path to bytes; bytes to characters"),
    (1, "digest", "whether bytes are the same bytes"),
    (1, "lookup pace", "the last ids' earlier places, a guess; whether it is worth a try"),
    (1, "dtype_blocks dtype_rows", "what a block of each element type is; the functions behind their table"),
    (1, "hash", "where numbers and bytes belong in a hash table"),
    (2, "dtype dtype_float dtype_block32 dtype_k dtype_k_write", "the table of element types; rows to floats and back"),
    (2, "sink", "a new file, whole or absent"),
    (2, "sniff", "what a file is that is not GGUF"),
    (2, "normalize pretokenize_stages", "text to normalization form C; what splitters share"),
    (2, "settle", "a block of memory moves into huge pages"),
    (3, "pretokenize pretokenize_words pretokenize_sets", "text to pieces"),
    (3, "gguf gguf_table gguf_index gguf_split gguf_get", "a validated file, or the parts of one"),
    (3, "cpu threads mathf", "the machine; exp, sin and cos of our own"),
    (4, "kernels/kernels kernels/blocks kernels/dispatch", "the contract of the inner loops; which file of them runs"),
    (
        4,
        "kernels/portable kernels/portable_blocks kernels/avx2 kernels/avx2_blocks kernels/avx512 "
        "kernels/avx512_blocks kernels/neon kernels/neon_blocks kernels/neon_dot",
        "the inner loops, by instruction set",
    ),
    (4, "bandwidth", "how fast the machine reads memory"),
    (4, "bpe special vocab vocab_whole charsmap", "symbols to ids; control tokens; the vocabulary"),
    (4, "quantize quantize_mix", "GGUF to GGUF; which type a tensor gets"),
    (5, "spm tokenizer_rules", "merging by score; how single models treat spaces"),
    (5, "tokenizer_kinds arch arch_read", "what kinds of vocabulary share; hyper-parameters"),
    (5, "matmul matmul_pack", "packed weights and their products"),
    (6, "tokenizer tokenizer_gpt2 tokenizer_spm", "text to ids; one file for each kind of vocabulary"),
    (6, "kv scratch", "a conversation's cache; working memory"),
    (6, "rope experts", "rotary positions; the choice of experts"),
    (6, "weights", "matrices of a file to one block of packed ones"),
    (7, "known", "what this build knows, by name"),
    (7, "attention", "queries over the cache"),
    (8, "model model_load", "a file's weights, checked and packed"),
    (9, "state sample_search", "one conversation; where a sum of weights reaches a target"),
    (9, "fingerprint", "which model this is"),
    (10, "forward forward_layers sample", "tokens to logits; logits to a token"),
    (10, "state_file", "a conversation to a file and back"),
    (11, "advance", "one token, and guesses along with it"),
    (12, "stream", "evaluate, sample, call back, repeat"),
]
# The kernels know shapes and numbers, nothing of files, models or failures; the choice between them may fail.
KERNELS_MAY_INCLUDE = {"common", "cpu", "dtype", "dtype_blocks", "kernels/blocks", "kernels/kernels", "mathf"}
DISPATCH_MAY_INCLUDE = KERNELS_MAY_INCLUDE | {"pantheon", "status"}

# Rank and modules or folders of pantheon/.
PYTHON_RANKS: list[tuple[int, str, str]] = [
    (0, "errors _core", "one exception class per cause; the compiled module"),
    (0, "_gate _arrays", "one caller at a time; ids and logits on their way to C"),
    (1, "_native", "calls into C, by what they are about; the only importer of _core"),
    (1, "_hub", "models of the hub, whole or in parts"),
    (2, "catalog", "a name to a file"),
    (2, "_types", "the element types of a file, in words"),
    (3, "_work", "how far a file is that is being made; what SIGTERM does to it"),
    (3, "engine", "Model, State, Tokenizer"),
    (4, "chat", "messages to ids, and a conversation"),
    (5, "repl bench web server", "the faces"),
    (5, "record", "what the page shows before a model is there"),
    (6, "cli", "flags to values, values to the library"),
    (7, "__main__ __init__", "the public names"),
]
# Imports against the direction, each inside a function, each with its reason.
UPWARD: dict[tuple[str, str], str] = {
    ("engine.model", "chat.session"): "Model.chat() is where a conversation starts in the public API",
}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
STATED_RANK = re.compile(r"\brank (\d+)", re.IGNORECASE)

Rooms = dict[str, int]


def rooms_of(table: list[tuple[int, str, str]]) -> Rooms:
    """The table as name -> rank."""
    return {name: rank for rank, names, _ in table for name in names.split()}


def check_stated_rank(where: str, opening: str, rank: int) -> Iterator[str]:
    """The rank in a file's opening comment, if it names one, against the table's."""
    stated = STATED_RANK.search(opening)
    if stated and int(stated.group(1)) != rank:
        yield f"{where}: its opening comment says rank {stated.group(1)}, the table says {rank}"


# ---- C ------------------------------------------------------------------------------------------------------------


def head_of(name: str, rooms: Rooms) -> str:
    """The room that a file is a part of: "gguf" for gguf_get, itself for others."""
    heads = [other for other in rooms if name.startswith(other + "_")]
    return min(heads, key=len, default=name)


def include_allowed(source: str, target: str, rooms: Rooms) -> bool:
    """Whether the file `source` may include the header `target` (both without suffix)."""
    if head_of(source, rooms) == head_of(target, rooms):  # one room
        return True
    if source == "kernels/dispatch":
        return target in DISPATCH_MAY_INCLUDE
    if source.startswith("kernels/"):
        return target in KERNELS_MAY_INCLUDE
    return rooms[target] < rooms[source] or rooms[target] == rooms[source] == 0


def check_c_file(csrc: Path, path: Path, rooms: Rooms) -> Iterator[str]:
    """The offences of one C file or header."""
    name = path.relative_to(csrc).with_suffix("").as_posix()
    where = f"csrc/{path.relative_to(csrc).as_posix()}"
    if name not in rooms:
        yield f"{where}: has no rank: give it a line in tools/check_layers.py"
        return
    text = path.read_text(encoding="utf-8")
    yield from check_stated_rank(where, text.partition("*/")[0], rooms[name])
    for include in INCLUDE.findall(text):
        beside = path.parent / include
        header = beside if beside.is_file() else csrc / include
        if not header.is_file():
            yield f"{where}: includes {include}, which is not in csrc/"
            continue
        target = header.resolve().relative_to(csrc.resolve()).with_suffix("").as_posix()
        if target not in rooms:
            continue  # said once, at the header itself
        if not include_allowed(name, target, rooms):
            yield f"{where} (rank {rooms[name]}): may not include {include} (rank {rooms[target]})"


def check_c(root: Path) -> Iterator[str]:
    """The offences of all of csrc/."""
    csrc = root / "csrc"
    rooms = rooms_of(C_RANKS)
    for path in sorted(p for p in csrc.rglob("*") if p.suffix in (".c", ".h")):
        yield from check_c_file(csrc, path, rooms)


# ---- Python -------------------------------------------------------------------------------------------------------


def room_of(module: str) -> str:
    """ "engine.model" lies in the room "engine"; the package itself is the room "__init__"."""
    return module.partition(".")[0] or "__init__"


def is_type_checking(test: ast.expr) -> bool:
    """Whether this is the condition of `if TYPE_CHECKING:`."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports_of(tree: ast.AST, inside_function: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """All import statements that run, each with whether it stands inside a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, inside_function
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            for other in node.orelse:
                yield from imports_of(other, inside_function)
        else:
            is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from imports_of(node, inside_function or is_function)


def targets_of(node: ast.Import | ast.ImportFrom, module: str, modules: set[str]) -> Iterator[str]:
    """The modules of the package that a statement imports, without the leading "pantheon."; "" is the package."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        base = node.module or ""
        if node.level:  # relative: counted from the folder of the module
            folder = ["pantheon", *module.split(".")]
            if module and not is_folder(module, modules):
                folder.pop()
            kept = folder[: len(folder) - node.level + 1]
            base = ".".join([*kept, *([base] if base else [])])
        children = [f"{base}.{alias.name}" for alias in node.names]
        names = [child if child.removeprefix("pantheon.") in modules else base for child in children]
    for name in names:
        if name == "pantheon" or name.startswith("pantheon."):
            yield name.removeprefix("pantheon").removeprefix(".")


def is_folder(module: str, modules: set[str]) -> bool:
    """Whether a module is a package of its own."""
    return any(other.startswith(module + ".") for other in modules)


def find_circle(edges: dict[str, set[str]]) -> list[str] | None:
    """One circle among modules that import each other while they load, or None."""
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> list[str] | None:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return None
        for target in sorted(edges.get(module, ())):
            circle = walk(target, [*path, module])
            if circle:
                return circle
        done.add(module)
        return None

    for module in sorted(edges):
        circle = walk(module, [])
        if circle:
            return circle
    return None


def check_python(root: Path) -> Iterator[str]:
    """The offences of all of pantheon/."""
    package = root / "pantheon"
    paths = {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix("__init__").removesuffix("."): path
        for path in sorted(package.rglob("*.py"))
    }
    modules = set(paths) | {"_core"}
    rooms = rooms_of(PYTHON_RANKS)
    edges: dict[str, set[str]] = {}
    for module, path in paths.items():
        where = path.relative_to(root).as_posix()
        if room_of(module) not in rooms:
            yield f"{where}: has no rank: give it a line in tools/check_layers.py"
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        yield from check_stated_rank(where, ast.get_docstring(tree) or "", rooms[room_of(module)])
        for node, lazily in imports_of(tree):
            for target in targets_of(node, module, modules):
                yield from check_import(f"{where}:{node.lineno}", module, target, lazily, rooms)
                if not lazily and same_room(room_of(module), room_of(target), rooms):
                    edges.setdefault(module, set()).add(target)
    circle = find_circle(edges)
    if circle:
        yield f"pantheon/: {' -> '.join(circle)}: these import each other in a circle"


def same_room(a: str, b: str, rooms: Rooms) -> bool:
    """Whether modules of these rooms may import each other."""
    return a == b or rooms.get(a) == rooms.get(b) == 0


def check_import(where: str, module: str, target: str, lazily: bool, rooms: Rooms) -> Iterator[str]:
    """The offence of one import, if it is one."""
    source_room, target_room = room_of(module), room_of(target)
    if target_room not in rooms or source_room == target_room:  # the first is said at the file itself
        return
    if lazily and (module, target) in UPWARD:
        return
    if target_room == "_core" and module != "_native.base":
        yield f"{where}: only _native/base.py may import the compiled module"
    elif same_room(source_room, target_room, rooms):
        return
    elif rooms[target_room] >= rooms[source_room]:
        yield (
            f"{where}: pantheon.{module} (rank {rooms[source_room]}) may not import "
            f"{('pantheon.' + target).rstrip('.')} (rank {rooms[target_room]})"
        )


# ---- Output -------------------------------------------------------------------------------------------------------


def table() -> str:
    """Both tables in Markdown."""
    lines = []
    for title, rows in (("csrc/", C_RANKS), ("pantheon/", PYTHON_RANKS)):
        lines += [f"| rank | `{title}` | what |", "| ---: | --- | --- |"]
        lines += [
            f"| {rank} | {' '.join(f'`{name}`' for name in names.split())} | {what} |" for rank, names, what in rows
        ]
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Exit code 0: clean."""
    if arguments == ["--table"]:
        print(table(), end="")
        return 0
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    offences = [*check_c(root), *check_python(root)]
    for offence in offences:
        print(offence)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
