"""A reply to be made, together with the prompt that it follows: what the session needs between asking and answering.

Rank 4: imports the engine and its siblings. Nothing is evaluated here.

The one thing to know first: an opening (a prefill, or a reply that is continued) stands at the end of the prompt as ids
of its own, never merged with the header before it. So the finished turn is these ids and the sampled ones, and the next
prompt begins with what was evaluated.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace

from pantheon.chat.segments import Kept
from pantheon.chat.turns import Draft
from pantheon.chat.window import Fitted
from pantheon.engine.generate import Job
from pantheon.engine.tokenizer import PieceDecoder, Tokenizer


@dataclass(frozen=True, slots=True)
class Plan:
    """A draft and its prompt."""

    draft: Draft
    fitted: Fitted

    @property
    def opening_ids(self) -> tuple[int, ...]:
        """The ids of the opening, at the end of the prompt; none without one."""
        segments = self.fitted.prompt.segments
        last = segments[-1] if segments and self.draft.opening is not None else None
        return last.ids if isinstance(last, Kept) and last.message == len(self.draft.before) else ()

    def base(self, job: Job) -> str:
        """What stands in the finished turn before the text of the reply that job() made. A prefill is in that text."""
        if not self.draft.continues or self.draft.opening is None:
            return ""
        content = self.draft.opening.message.content
        return content[:-1] if job.begun else content  # without the U+FFFD

    def job(self, job: Job) -> Job:
        """The job, for a reply that goes on with the opening."""
        if self.draft.opening is None:
            return job
        written = [token for token in self.opening_ids if not job.tokenizer.is_control(token)]
        return replace(
            job,
            after=written[-1] if written else None,
            prefill="" if self.draft.continues else self.draft.opening.message.content,
            begun=self._begun(job.tokenizer),
        )

    def _begun(self, tokenizer: Tokenizer) -> bytes:
        """The bytes of a character that the opening was cut in the middle of; its text has U+FFFD there."""
        opening = self.draft.opening
        if opening is None or not opening.message.content.endswith("\ufffd"):
            return b""
        pieces, utf8 = PieceDecoder(tokenizer, False, None), codecs.getincrementaldecoder("utf-8")("replace")
        for token in self.opening_ids:
            utf8.decode(pieces.push(token))
        return bytes(utf8.getstate()[0])
