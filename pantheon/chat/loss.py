"""Why tokens that a state held had to be read again: where the ids held and wanted part, and whose text that is.

Rank 4: imports its siblings.

The one thing to know first: only tokens of messages that were read before count. A new message, an undone reply or a
regenerated one costs what it costs and is no loss.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    again = _first_new(pieces, _n_known(before.turns, wanted.turns)) - reused
    if again <= 0:
        return None
    return _sentence(_cause(wanted, before, held, reused, chat_format, pieces), reused, again)


def _sentence(cause: str, at: int, again: int) -> str:
    return f"{cause} at token {at}; {again} token{'s'[: again != 1]} read again"


def _pieces(fitted: Fitted, chat_format: ChatFormat) -> tuple[Piece, ...]:
    return take_apart(fitted.prompt, fitted.turns, fitted.start, chat_format.tokenizer, chat_format.stop_ids, 0)[1]


def _n_known(before: Sequence[Turn], now: Sequence[Turn]) -> int:
    """How many messages, from the first, are those of the turn before, the reply that it got included."""
    n = next((n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a.message != b.message), None)
    if n is not None:
        return n
    n = min(len(before), len(now))
    return n + 1 if n < len(now) and now[n].message.role == "assistant" else n


def _first_new(pieces: Sequence[Piece], n_known: int) -> int:
    """The index of the first token of what comes after the known messages."""
    known = [number for number, piece in enumerate(pieces) if piece.message is not None and piece.message < n_known]
    return sum(piece.tokens for piece in pieces[: known[-1] + 1]) if known else 0


def _cause(
    wanted: Fitted,
    before: Fitted,
    held: IdBuffer,
    reused: int,
    chat_format: ChatFormat,
    pieces: Sequence[Piece],
) -> str:
    more = len(wanted.dropped) - len(before.dropped)
    if more > 0:
        return f"{more} exchange{'s'[: more != 1]} left out: the prompt goes on differently"
    if more < 0:
        return f"{-more} exchange{'s'[: more != -1]} that had been left out came back"
    if reused >= len(before.prompt.ids):  # in the reply
        return f"the template rewrote {_turn(wanted.turns, len(before.turns))}"
    piece = _piece_at(_pieces(before, chat_format), reused)
    message = piece.message if piece is not None else None
    if message is None:
        now = _piece_at(pieces, reused)
        message = now.message if now is not None else None
    if message is None:
        return "the template's own text changed"
    return f"the template rewrote {_turn(wanted.turns, message)}"


def _piece_at(pieces: Sequence[Piece], token: int) -> Piece | None:
    for piece in pieces:
        if token < piece.tokens:
            return piece
        token -= piece.tokens
    return None


def _turn(turns: Sequence[Turn], message: int) -> str:
    """ "assistant turn 2": which of its role's messages one is, counted from 1."""
    if message >= len(turns):
        return f"message {message}"
    role = turns[message].message.role
    return f"{role} turn {sum(turn.message.role == role for turn in turns[: message + 1])}"
