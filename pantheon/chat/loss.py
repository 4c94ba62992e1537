"""Why tokens that a state held had to be read again: where the ids held and wanted part, and whose text that is.

Rank 4: imports its siblings.

The one thing to know first: only tokens of messages that were read before count. A new message, an undone reply or a
regenerated one costs what it costs and is no loss; what stands behind a message that was changed is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from pantheon._arrays import IdBuffer
from pantheon.chat.format import ChatFormat
from pantheon.chat.messages import Turn
from pantheon.chat.pieces import Piece, take_apart
from pantheon.chat.window import Fitted


def note_of(wanted: Fitted, before: Fitted | None, held: IdBuffer, reused: int, chat_format: ChatFormat) -> str | None:
    """A sentence, or None if nothing was lost. before: the prompt of the turn before; held: what the state held then,
    which begins as that prompt does; reused: with how many ids `wanted` and `held` both begin."""
    n = len(wanted.prompt.ids)
    if not held or reused == len(held) or reused >= n - 1:
        return None
    if before is None:
        return _sentence("the state held other tokens", reused, min(len(held), n) - reused)
    pieces = _pieces(wanted, chat_format)
    known = _known(before.turns, wanted.turns)
    again = _count(pieces, {now for _, now in known}, reused)
    if again <= 0:
        return None
    return _sentence(_cause(wanted, before, reused, chat_format, pieces, known), reused, again)


def _sentence(cause: str, at: int, again: int) -> str:
    return f"{cause} at token {at}; {again} token{'s'[: again != 1]} read again"


def _pieces(fitted: Fitted, chat_format: ChatFormat) -> tuple[Piece, ...]:
    return take_apart(fitted.prompt, fitted.turns, fitted.start, chat_format.tokenizer, chat_format.stop_ids, 0)[1]


def _known(before: Sequence[Turn], now: Sequence[Turn]) -> set[tuple[int, int]]:
    """The messages that were read before, as (index then, index now). The reply that came behind them is one."""
    old, new = ([(turn.message.role, turn.message.content) for turn in turns] for turns in (before, now))
    if len(old) < len(new) and new[len(old)][0] == "assistant":
        old.append(new[len(old)])
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return {(block.a + n, block.b + n) for block in blocks for n in range(block.size)}


def _count(pieces: Sequence[Piece], known: set[int], reused: int) -> int:
    """How many tokens of known messages, and of the template's parts between them, are behind the first `reused`."""
    last = max((number for number, piece in enumerate(pieces) if piece.message in known), default=-1)
    at = again = 0
    for piece in pieces[: last + 1]:
        if piece.message is None or piece.message in known:
            again += min(piece.tokens, max(at + piece.tokens - reused, 0))
        at += piece.tokens
    return again


def _cause(
    wanted: Fitted,
    before: Fitted,
    reused: int,
    chat_format: ChatFormat,
    pieces: Sequence[Piece],
    known: set[tuple[int, int]],
) -> str:
    more = len(wanted.dropped) - len(before.dropped)
    if more > 0:
        return f"{more} exchange{'s'[: more != 1]} left out: the prompt goes on differently"
    if more < 0:
        return f"{-more} exchange{'s'[: more != -1]} that had been left out came back"
    now = _message_at(pieces, reused)
    if now is not None and now not in {new for _, new in known}:
        return f"{_turn(wanted.turns, now)} is not what was read before"
    then = _message_at(_pieces(before, chat_format), reused)
    if then is not None and then not in {old for old, _ in known}:
        return f"{_turn(before.turns, then)} was taken out"
    if then is not None:
        return f"the template rewrote {_turn(before.turns, then)}"
    if now is not None:
        return f"the template rewrote {_turn(wanted.turns, now)}"
    return "the template's own text changed"


def _message_at(pieces: Sequence[Piece], token: int) -> int | None:
    """The message whose piece a token is in."""
    for piece in pieces:
        if token < piece.tokens:
            return piece.message
        token -= piece.tokens
    return None


def _turn(turns: Sequence[Turn], message: int) -> str:
    """ "assistant turn 2": which of its role's messages one is, counted from 1."""
    role = turns[message].message.role if message < len(turns) else "assistant"
    return f"{role} turn {sum(turn.message.role == role for turn in turns[: message + 1])}"
