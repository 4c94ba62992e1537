"""Tokens that the file names as bos, eos, eot or eom: control tokens, whatever type the file gives them.

The oracle is the same vocabulary with the right types: ids, pieces and decoded text must be equal.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_worlds import open_vocabulary
from spm_vocabulary import BYTE, CONTROL, MARK, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, Piece, byte_pieces
from spm_vocabulary import Vocabulary as SpmVocabulary
from vocabularies import Vocabulary, made_vocabulary, replaced

import pantheon
from pantheon.chat import Message
from pantheon.chat.choice import make_format
from pantheon.chat.messages import Turn

ROLES = ("bos", "eos", "eot", "eom")
WRONG = (NORMAL, UNKNOWN, UNUSED, BYTE, None)  # None: no types in the file at all
END = f"<end{MARK}it>"  # in a control token the mark of spaces is itself
TEXTS = ["<e", "<end", END, f"a{END}b", f"{END}{END}", f"x <end it> {END} y\n"]


def bpe(kind: int | None, role: str) -> Vocabulary:
    """Merges lead from the bytes to "<end", and to END where it is an ordinary token."""
    base = made_vocabulary([b"<end", b"it"], extra=[(END, CONTROL if kind is None else kind)])
    end = len(base.tokens) - 1
    more = {"types": None} if kind is None else {}
    return replaced(base, keys=((f"{role}_token_id", end), ("unknown_token_id", 0)), **more)


def spm(kind: int | None, role: str) -> SpmVocabulary:
    """END has the highest score of all pieces, and so has each half of it."""
    halves = [END[:cut] for cut in range(2, len(END))]
    pieces = [Piece("<unk>", 0.0, UNKNOWN), *byte_pieces(), *(Piece(c, -1.0) for c in "abexyndit<> " + MARK)]
    pieces += [Piece(half, 10.0 + len(half)) for half in halves]
    pieces += [Piece(END, 100.0, CONTROL if kind is None else kind)]
    vocabulary = SpmVocabulary(pieces=tuple(pieces), space=False, keys=((f"{role}_token_id", len(pieces) - 1),))
    return replace(vocabulary, keys=(*vocabulary.keys, ("token_type", None))) if kind is None else vocabulary


def opened(vocabulary: Vocabulary | SpmVocabulary, path: Path) -> pantheon.Tokenizer:
    return pantheon.Tokenizer.from_file(vocabulary.write(path))


@pytest.mark.parametrize("make", [bpe, spm])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", WRONG)
def test_a_token_with_a_role_is_a_control_token_whatever_its_type(
    make: Any, role: str, kind: int | None, tmp_path: Path
) -> None:
    ours, right = opened(make(kind, role), tmp_path / "a.gguf"), opened(make(CONTROL, role), tmp_path / "b.gguf")
    end = right.token_id(END)
    assert end is not None
    assert ours.token_id(END) == end
    assert ours.is_control(end)
    assert ours.piece(end) == END.encode()
    for text in TEXTS:
        ids = ours.encode(text)
        assert end not in ids
        assert ids.tolist() == right.encode(text).tolist()
        assert ours.decode(ids) == text.replace(MARK, " " if make is spm else MARK)
        special = ours.encode(text, special=True)
        assert special.tolist() == right.encode(text, special=True).tolist()
        assert np.count_nonzero(special == end) == text.count(END)
    assert ours.decode([end, *ours.encode("ab"), end], special=False) == "ab"


@pytest.mark.parametrize("make", [bpe, spm])
def test_templates_reach_it_and_messages_do_not(make: Any, tmp_path: Path) -> None:
    tokenizer, _ = open_vocabulary(str(make(NORMAL, "eos").write(tmp_path / "v.gguf")))
    end = tokenizer.eos
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}<end" + MARK + "it>{% endfor %}"
    chat_format = make_format(tokenizer, {}, forced=template)
    ids = chat_format.prompt([Turn(Message("user", f"a{END}b"))]).ids.tolist()
    assert ids[-2:] == [end, end]
    assert ids.count(end) == 2


@pytest.mark.parametrize("make", [bpe, spm])
def test_a_user_defined_token_with_a_role_stays_one_and_is_no_text(make: Any, tmp_path: Path) -> None:
    tokenizer = opened(make(USER_DEFINED, "eot"), tmp_path / "v.gguf")
    assert tokenizer.stop_ids == (tokenizer.n_vocab - 1,)
    assert tokenizer.n_vocab - 1 not in tokenizer.encode(f"a{END}b")


def test_a_bytes_own_token_stays_text_even_if_it_ends_a_reply(tmp_path: Path) -> None:
    """Models that end at a line's end: without that token no text of two lines could be written."""
    line_end = "Ċ"  # how byte-level vocabularies spell it
    base = made_vocabulary([b"ab"])
    for number, vocabulary in enumerate(
        (
            replaced(base, keys=(("eos_token_id", base.tokens.index(line_end)),)),
            replaced(base, types=None, keys=(("eos_token_id", base.tokens.index(line_end)),)),
            replace(spm(CONTROL, "bos"), keys=(("eos_token_id", 1 + 10),)),
        )
    ):
        tokenizer = opened(vocabulary, tmp_path / f"{number}.gguf")
        assert tokenizer.stop_ids == (tokenizer.eos,)
        assert tokenizer.encode("ab\nab").tolist().count(tokenizer.eos) == 1
        assert tokenizer.decode(tokenizer.encode("ab\nab")) == "ab\nab"
