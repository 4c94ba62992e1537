"""The recorded results: what the engine really reads and writes in a short conversation, for a page without a model.

Rank 5: imports the engine and the chat.

The five messages of presets.py are said with each system prompt in each window, to a fresh chat each time, greedy. The
result is one mapping, which as_json() turns into the same bytes on every machine: tokens and replies are equal by the
promise that the engine makes, log-probabilities are rounded far above the last bits that numpy's exp may differ in, and
times are left out.

The form that is written is folded, since most runs share most of what they say: what is equal is written once and
referred to by its index. unfold() undoes that; `unfold()` of pantheon/web/static/unfold.js is the same for the page.

    format, model {title, fingerprint}, made_by, limit, date, date_text, messages, windows
    systems      [{key, label, text, live}]: text was recorded; live has {date} and {year} for those of another day
    vocabulary   {id: bytes in hexadecimal} of every token that occurs
    lines        lines of the Python programs
    readings     page_reading() of chat/wire.py, without `window` and `tokens.hex`
    replies      {text, finish_reason, limit, tokens {id, logprob}, top {id, logprob}}; top: five rivals of each token
    turns        {window, reading, reply, python}: a number, indices of readings and replies, indices of lines
    runs         {system's key: {window: [index of the turn of each message]}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pantheon.chat.presets import (
    MESSAGES,
    RECORDED_DATE,
    REPLY_LIMIT,
    SYSTEMS,
    WINDOWS,
    System,
    in_words,
    reply_limit_in,
)
from pantheon.chat.wire import page_reading

if TYPE_CHECKING:
    from pantheon.chat.reading import Reading
    from pantheon.engine.generate import Reply
    from pantheon.engine.logprobs import TokenLogprob
    from pantheon.engine.model import Model

FORMAT = 1
RIVALS = 5
"""How many of the likeliest tokens are kept in the place of each sampled one."""
_DIGITS = 3
"""Of log-probabilities, behind the point."""
_LISTS = ("systems", "lines", "readings", "replies", "turns")
"""What is written an item a line, so that a change shows as the lines that changed."""

Recorded = dict[str, Any]


@dataclass(slots=True)
class _Pool:
    """Things of which equal ones are kept once."""

    items: list[Any] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)

    def put(self, item: Any) -> int:
        """The index of the item, which is added if none equals it."""
        at = self.index.setdefault(_compact(item), len(self.items))
        if at == len(self.items):
            self.items.append(item)
        return at


class _Recorder:
    """What has been said so far, folded."""

    def __init__(self) -> None:
        self.lines, self.readings, self.replies, self.turns = _Pool(), _Pool(), _Pool(), _Pool()
        self.vocabulary: dict[int, str] = {}

    def add(self, reading: Reading, reply: Reply) -> int:
        """The index of the turn."""
        kept = page_reading(reading)
        window, tokens = kept.pop("window"), kept["tokens"]
        self.vocabulary.update(zip(tokens["id"], tokens.pop("hex"), strict=True))
        return self.turns.put(
            {
                "window": window,
                "reading": self.readings.put(kept),
                "reply": self.replies.put(self._reply(reply, reading.reserve)),
                "python": [self.lines.put(line) for line in reading.to_python().split("\n")],
            }
        )

    def _reply(self, reply: Reply, limit: int) -> dict[str, Any]:
        assert reply.logprobs is not None
        return {
            "text": reply.text,
            "finish_reason": reply.finish_reason,
            "limit": limit,
            "tokens": self._columns(reply.logprobs),
            "top": [self._columns(each.top) for each in reply.logprobs],
        }

    def _columns(self, tokens: Iterable[TokenLogprob]) -> dict[str, list[Any]]:
        tokens = list(tokens)
        self.vocabulary.update((token.id, token.bytes.hex()) for token in tokens)
        return {"id": [token.id for token in tokens], "logprob": [_rounded(token.logprob) for token in tokens]}


def record(
    model: Model,
    title: str,
    *,
    only: Iterable[tuple[str, int]] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Recorded:
    """Hold the conversations.

    title: what the page calls the model. only: pairs of a system's key and a window, to hold these alone; None: all.
    note: told what is said next. Raises what a chat raises: ContextError if a message has no room.
    """
    windows = windows_of(model)
    chosen = [(system.key, window) for system in SYSTEMS for window in windows]
    if only is not None:
        wanted = set(only)
        chosen = [pair for pair in chosen if pair in wanted]
    recorder = _Recorder()
    runs: dict[str, dict[str, list[int]]] = {}
    for number, (key, window) in enumerate(chosen, 1):
        note(f"conversation {number} of {len(chosen)}: {key}, a window of {window}")
        system = next(system for system in SYSTEMS if system.key == key)
        runs.setdefault(key, {})[str(window)] = _run(model, system, window, recorder)
    return {
        "format": FORMAT,
        "model": {"title": title, "fingerprint": model.fingerprint},
        "made_by": "pantheon record",
        "limit": REPLY_LIMIT,
        "date": RECORDED_DATE.isoformat(),
        "date_text": in_words(RECORDED_DATE),
        "messages": list(MESSAGES),
        "windows": windows,
        "systems": [
            {"key": system.key, "label": system.label, "text": system.on(RECORDED_DATE), "live": system.text}
            for system in SYSTEMS
        ],
        "vocabulary": {str(token): recorder.vocabulary[token] for token in sorted(recorder.vocabulary)},
        "lines": recorder.lines.items,
        "readings": recorder.readings.items,
        "replies": recorder.replies.items,
        "turns": recorder.turns.items,
        "runs": runs,
    }


def windows_of(model: Model) -> list[int]:
    """The windows that can be chosen with a model, its own the last."""
    own = model.context_length
    return [*(window for window in WINDOWS if window < own), own]


def _run(model: Model, system: System, window: int, recorder: _Recorder) -> list[int]:
    """One conversation; the index of the turn of each message."""
    turns: list[int] = []
    with model.chat(system.on(RECORDED_DATE), window=window, reply_limit=reply_limit_in(window)) as chat:
        for message in MESSAGES:
            reply = chat.send(message, logprobs=RIVALS)
            assert chat.reading is not None
            turns.append(recorder.add(chat.reading, reply))
    return turns


def unfold(recorded: Recorded) -> Recorded:
    """The recorded results with turns that stand for themselves: turns[i] is {reading, reply, python}, where reading is
    a whole page_reading(), python one text, and tokens and rivals have their bytes as `hex`."""
    hexes: dict[str, str] = recorded["vocabulary"]
    folded = {"vocabulary", "lines", "readings", "replies", "turns"}
    rest = {key: value for key, value in recorded.items() if key not in folded}
    return {**rest, "turns": [_unfolded(turn, recorded, hexes) for turn in recorded["turns"]]}


def _unfolded(turn: dict[str, Any], recorded: Recorded, hexes: dict[str, str]) -> dict[str, Any]:
    def spelled(columns: dict[str, Any]) -> dict[str, Any]:
        return {**columns, "hex": [hexes[str(token)] for token in columns["id"]]}

    reading, reply = recorded["readings"][turn["reading"]], recorded["replies"][turn["reply"]]
    return {
        "reading": {**reading, "window": turn["window"], "tokens": spelled(reading["tokens"])},
        "reply": {**reply, "tokens": spelled(reply["tokens"]), "top": [spelled(top) for top in reply["top"]]},
        "python": "\n".join(recorded["lines"][line] for line in turn["python"]),
    }


def as_json(recorded: Recorded) -> str:
    """The text of the file, in UTF-8: the same bytes for the same results."""
    parts = []
    for key, value in recorded.items():
        items = [_compact(item) for item in value] if key in _LISTS else []
        written = "[\n" + ",\n".join(items) + "\n]" if items else _compact(value)
        parts.append(f"{_compact(key)}:{written}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def difference(shipped: str, fresh: str) -> str | None:
    """Where two texts of the file first differ, in words; None: they are equal."""
    if shipped == fresh:
        return None
    ours, theirs = shipped.split("\n"), fresh.split("\n")
    pairs = enumerate(zip(ours, theirs, strict=False), 1)
    line = next((at for at, (old, new) in pairs if old != new), min(len(ours), len(theirs)) + 1)
    return f"line {line} differs (of {len(ours)} lines; a fresh run has {len(theirs)})"


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _rounded(logprob: float) -> float:
    return round(logprob, _DIGITS) + 0.0  # -0.0 is written as 0.0
