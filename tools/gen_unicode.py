#!/usr/bin/env python3
"""Write csrc/unicode_tables.h (a property byte for each code point) and csrc/normalize_tables.h (canonical mappings).

    python tools/gen_unicode.py [--check]

The tables follow what the `tokenizers` library (0.23) does, because its ids are the reference, and it has several
ideas of Unicode. Its regular expressions (\\p{L}, \\p{N}, \\s) know Unicode 16.0; its digit splitter asks the Rust
standard library, which knows Unicode 17.0; its normalization forms know Unicode 9.0. So the data come from Unicode 16.0
(a Python whose `unicodedata` is at that version, else the package `unicodedata2==16.0.0`), and where the others differ
is listed here by hand. (Its splitter of punctuation knows Unicode 8.0: see csrc/pretokenize_sets.c.)
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VERSION = "16.0.0"
CSRC = Path(__file__).resolve().parent.parent / "csrc"
BLOCK = 128
LAST = 0x10FFFF

# In the order of csrc/unicode.h's enum of categories.
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co".split()
OTHER, LETTER, NUMBER, SPACE, NUMERIC = 0, 1, 2, 3, 4

# The property White_Space. It has been the same since Unicode 6.3.
WHITE_SPACE = frozenset(
    [*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
)
# Tolong Siki digits and Chinese small numbers: Nd and Nl in Unicode 17.0, unassigned in 16.0.
NUMERIC_SINCE_17 = frozenset([*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)])

# Characters with a combining class, and those with a canonical decomposition, that came after Unicode 9.0. The
# reference's normalization takes them for characters that nothing happens to.
ORDERED_SINCE_10 = (
    (0x07FD, 0x07FD),
    (0x0897, 0x089F),
    (0x08CA, 0x08D3),
    (0x09FE, 0x09FE),
    (0x0C3C, 0x0C3C),
    (0x0D3B, 0x0D3C),
    (0x0EBA, 0x0EBA),
    (0x1715, 0x1715),
    (0x1ABF, 0x1ACE),
    (0x1DF6, 0x1DFA),
    (0xA82C, 0xA82C),
    (0x10D24, 0x10D27),
    (0x10D69, 0x10D6D),
    (0x10EAB, 0x10EAC),
    (0x10EFD, 0x10EFF),
    (0x10F46, 0x10F50),
    (0x10F82, 0x10F85),
    (0x11070, 0x11070),
    (0x1133B, 0x1133B),
    (0x113CE, 0x113D0),
    (0x1145E, 0x1145E),
    (0x11839, 0x1183A),
    (0x1193D, 0x1193E),
    (0x11943, 0x11943),
    (0x119E0, 0x119E0),
    (0x11A34, 0x11A34),
    (0x11A47, 0x11A47),
    (0x11A99, 0x11A99),
    (0x11D42, 0x11D42),
    (0x11D44, 0x11D45),
    (0x11D97, 0x11D97),
    (0x11F41, 0x11F42),
    (0x1612F, 0x1612F),
    (0x16FF0, 0x16FF1),
    (0x1E08F, 0x1E08F),
    (0x1E130, 0x1E136),
    (0x1E2AE, 0x1E2AE),
    (0x1E2EC, 0x1E2EF),
    (0x1E4EC, 0x1E4EF),
    (0x1E5EE, 0x1E5EF),
)
DECOMPOSED_SINCE_10 = (
    (0x105C9, 0x105C9),
    (0x105E4, 0x105E4),
    (0x11383, 0x11383),
    (0x11385, 0x11385),
    (0x1138E, 0x1138E),
    (0x11391, 0x11391),
    (0x113C5, 0x113C5),
    (0x113C7, 0x113C8),
    (0x11938, 0x11938),
    (0x16121, 0x16128),
    (0x16D68, 0x16D6A),
)
HANGUL_SYLLABLES = range(0xAC00, 0xD7A4)  # composed and decomposed by arithmetic, in csrc/normalize.c
HANGUL_VOWELS_AND_TAILS = frozenset([*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)])


def load_unicode() -> Any:
    """The module that holds exactly VERSION of the data."""
    for name in ("unicodedata", "unicodedata2"):
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        if module.unidata_version == VERSION:
            return module
    sys.exit(f"gen_unicode: needs Unicode {VERSION} data: pip install unicodedata2=={VERSION}")


def properties(category_of: Callable[[str], str]) -> bytes:
    """One byte for each code point: category << 3 | numeric << 2 | class."""
    out = bytearray()
    for code in range(LAST + 1):
        category = category_of(chr(code))
        kind = {"L": LETTER, "N": NUMBER}.get(category[0], OTHER)
        if code in WHITE_SPACE:
            kind = SPACE
        numeric = NUMERIC if category[0] == "N" or code in NUMERIC_SINCE_17 else 0
        out.append(CATEGORIES.index(category) << 3 | numeric | kind)
    return bytes(out)


def format_rows(values: list[int], group: int = 1, indent: str = "    ", width: int = 118) -> Iterator[str]:
    """Comma-separated numbers in lines of at most `width` columns; with a group each so many are a row of braces."""
    line = indent
    for at in range(0, len(values), group):
        numbers = ",".join(str(value) for value in values[at : at + group])
        item = f"{{{numbers}}}," if group > 1 else f"{numbers},"
        if len(line) + len(item) > width:
            yield line
            line = indent
        line += item
    yield line


def two_stages(table: bytes) -> tuple[list[int], list[int]]:
    """The table as the number of each block, and the different blocks one after the other."""
    blocks: dict[bytes, int] = {}
    index = [blocks.setdefault(table[at : at + BLOCK], len(blocks)) for at in range(0, len(table), BLOCK)]
    return index, [value for block in blocks for value in block]


def render_properties(table: bytes) -> str:
    """The text of unicode_tables.h."""
    index, flat = two_stages(table)
    lines = [
        "/* unicode_tables.h - generated by tools/gen_unicode.py; do not edit.   (rank 1; for unicode.c alone)",
        " *",
        f" * Unicode {VERSION[:-2]} (categories, letters, numbers, white space); numeric as in Unicode 17.0.",
        " * Byte: category << 3 | numeric << 2 | class, as in unicode.h.",
        " * Code point c is at UNICODE_BLOCKS[UNICODE_INDEX[c / 128] * 128 + c % 128]. */",
        "#ifndef PN_UNICODE_TABLES_H",
        "#define PN_UNICODE_TABLES_H",
        "",
        "#include <stdint.h>",
        "",
        "/* clang-format off */",
        f"static const uint16_t UNICODE_INDEX[{len(index)}] = {{",
        *format_rows(index),
        "};",
        f"static const uint8_t UNICODE_BLOCKS[{len(flat)}] = {{",
        *format_rows(flat),
        "};",
        "const uint8_t unicode_ascii[128] = {",
        *format_rows(list(table[:128])),
        "};",
        "/* clang-format on */",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


# ---- Normalization ------------------------------------------------------------------------------------------------


def is_in(code: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    """Whether a code point lies in one of the ranges, ends included."""
    return any(first <= code <= last for first, last in ranges)


def decompositions(unicode: Any) -> dict[int, tuple[int, int]]:
    """Code point to its canonical decomposition of one level; the second is 0 where it is a single character."""
    out = {}
    for code in range(LAST + 1):
        text = unicode.decomposition(chr(code))
        if text and not text.startswith("<") and not is_in(code, DECOMPOSED_SINCE_10):
            parts = [int(part, 16) for part in text.split()]
            out[code] = (parts[0], parts[1] if len(parts) > 1 else 0)
    if any(second in out for _, second in out.values()):
        sys.exit("gen_unicode: csrc/normalize.c takes apart the first of a pair only")
    return out


def compositions(unicode: Any, parts_of: dict[int, tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Pairs that NFC puts together: all decompositions but the excluded ones, which Python's NFC shows."""
    return {
        parts: code
        for code, parts in parts_of.items()
        if parts[1] and unicode.normalize("NFC", chr(parts[0]) + chr(parts[1])) == chr(code)
    }


def normalization(
    unicode: Any, parts_of: dict[int, tuple[int, int]], composed: dict[tuple[int, int], int]
) -> tuple[bytes, int]:
    """One byte for each code point, changing << 7 | rank of its combining class, and how many ranks there are."""
    classes = [0 if is_in(code, ORDERED_SINCE_10) else int(unicode.combining(chr(code))) for code in range(LAST + 1)]
    ranks = {value: rank for rank, value in enumerate(sorted(set(classes)))}
    seconds = {second for _, second in composed} | HANGUL_VOWELS_AND_TAILS
    stays = set(composed.values())
    out = bytearray()
    for code, combining in enumerate(classes):
        changing = code in seconds or (code in parts_of and code not in stays)
        out.append(ranks[combining] | (0x80 if changing else 0))
    return bytes(out), len(ranks)


def render_normalization(unicode: Any) -> str:
    """The text of normalize_tables.h."""
    parts_of = decompositions(unicode)
    composed = compositions(unicode, parts_of)
    table, n_ranks = normalization(unicode, parts_of, composed)
    index, flat = two_stages(table)
    lines = [
        "/* normalize_tables.h - generated by tools/gen_unicode.py; do not edit.   (rank 1; for normalize.c alone)",
        " *",
        " * Canonical decomposition and composition as in Unicode 9.0.",
        " * A byte of NORMALIZE_BLOCKS: changing << 7 | rank of the combining class, 0 for class 0. A row of",
        " * NORMALIZE_PARTS: code, first, second or 0; of NORMALIZE_PAIRS: first, second, composed. Rows ascend. */",
        "#ifndef PN_NORMALIZE_TABLES_H",
        "#define PN_NORMALIZE_TABLES_H",
        "",
        "#include <stdint.h>",
        "",
        f"#define NORMALIZE_RANKS {n_ranks}",
        "",
        "/* clang-format off */",
        f"static const uint16_t NORMALIZE_INDEX[{len(index)}] = {{",
        *format_rows(index),
        "};",
        f"static const uint8_t NORMALIZE_BLOCKS[{len(flat)}] = {{",
        *format_rows(flat),
        "};",
        f"static const uint32_t NORMALIZE_PARTS[{len(parts_of)}][3] = {{",
        *format_rows([value for code, parts in sorted(parts_of.items()) for value in (code, *parts)], group=3),
        "};",
        f"static const uint32_t NORMALIZE_PAIRS[{len(composed)}][3] = {{",
        *format_rows([value for pair, code in sorted(composed.items()) for value in (*pair, code)], group=3),
        "};",
        "/* clang-format on */",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Write the headers, or with --check compare them with what would be written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only tell whether the files are up to date")
    check = parser.parse_args().check
    unicode = load_unicode()
    texts = {
        CSRC / "unicode_tables.h": render_properties(properties(unicode.category)),
        CSRC / "normalize_tables.h": render_normalization(unicode),
    }
    if check:
        return 0 if all(path.exists() and path.read_text() == text for path, text in texts.items()) else 1
    for path, text in texts.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
