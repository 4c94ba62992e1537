"""A Reading in columns: the compact JSON in which the page gets it, live and recorded.

Rank 4: imports its siblings.

`Reading.to_dict()` has an object for each token, which is good to read and ten times as long. Here each property of the
tokens is one list, as long as the prompt; bytes are hexadecimal, so that a token may end within a character; and what
belongs to a message is an index. The text of the prompt is the bytes joined, decoded as UTF-8.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pantheon.chat.pieces import Token

if TYPE_CHECKING:
    from pantheon.chat.reading import Reading
    from pantheon.chat.window import Dropped


def page_reading(reading: Reading) -> dict[str, Any]:
    """All of a Reading that the page shows.

    origins: the names that tokens.origin and tokens.also are indices of. pieces[].message and tokens.message: the index
    of a message in the conversation; null, among the tokens -1: it is of no message. tokens.control: 1 for a control
    token, 0 for text. tokens.also: for the few tokens that straddle a border all their origins, by the token's index.
    The first reused_tokens tokens are the reused ones. dropped[].texts: what is no longer read.
    """
    already = len(reading.dropped) - len(reading.newly_dropped)
    return {
        "prompt_tokens": len(reading),
        "reused_tokens": reading.reused,
        "evaluated_tokens": reading.evaluated,
        "window": reading.window,
        "reserve": reading.reserve,
        "policy": reading.policy,
        "note": reading.note,
        "bos": reading.bos,
        "stop_ids": list(reading.stop_ids),
        "template": reading.chat_format.title,
        "inserted_system": reading.inserted_system,
        "dropped": [_dropped(reading, out, at >= already) for at, out in enumerate(reading.dropped)],
        "look_alikes": [asdict(found) for found in reading.look_alikes],
        "pieces": [
            {
                "name": reading.name_of(piece),
                "role": piece.role,
                "message": piece.message,
                "tokens": piece.tokens,
                "reused": piece.reused,
            }
            for piece in reading.pieces
        ],
        **_columns(reading.tokens),
    }


def _dropped(reading: Reading, out: Dropped, newly: bool) -> dict[str, Any]:
    messages = [reading.fitted.turns[index].message for index in out.messages]
    return {
        "messages": list(out.messages),
        "tokens": out.tokens,
        "reason": out.reason,
        "newly": newly,
        "texts": [{"role": message.role, "content": message.content} for message in messages],
    }


def _columns(tokens: tuple[Token, ...]) -> dict[str, Any]:
    """The tokens as lists, and the names of their origins in the order in which they first come."""
    origins = list(dict.fromkeys(origin for token in tokens for origin in (token.origin, *token.origins)))
    index = {origin: at for at, origin in enumerate(origins)}
    return {
        "origins": origins,
        "tokens": {
            "id": [token.id for token in tokens],
            "hex": [token.bytes.hex() for token in tokens],
            "control": [int(token.kind == "control") for token in tokens],
            "origin": [index[token.origin] for token in tokens],
            "piece": [token.piece for token in tokens],
            "message": [-1 if token.message is None else token.message for token in tokens],
            "also": {
                str(at): [index[origin] for origin in token.origins]
                for at, token in enumerate(tokens)
                if len(token.origins) > 1
            },
        },
    }
