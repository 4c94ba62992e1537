"""Which turns of a conversation are kept so that prompt and reply fit into the window, and which are left out.

Rank 4: imports errors and its siblings. Nothing is evaluated here, and no state is looked at.

An exchange is a user's message and all that follows it up to the next user's: the reply, calls of tools and their
results. Exchanges are left out whole, the oldest first; what stands before the first user's message counts as the
oldest. System texts always stay, wherever they stand, and so does the last exchange.

The one thing to know first: whether a conversation fits is decided on the prompt that its template prints for what is
kept, never on an estimate, for a template may print other things when it is given less. (Of a long history, what is too
long by far is passed over.) And what was left out once
stays out: `before` carries it from one turn to the next, so that a conversation does not lose and regain a turn by
turns, and the model's cache with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from pantheon.chat.messages import Turn
from pantheon.chat.segments import Kept, Prompt, Text
from pantheon.errors import ArgumentError, ContextError

Policy = Literal["drop_oldest", "error", "drop_to_fraction"]
"""What is done when a prompt does not fit. drop_oldest: leave out as few of the oldest exchanges as will do.
drop_to_fraction: then leave out more at once, down to a fraction of the room for the prompt, so that it keeps its
beginning, and the cache its use, for many turns. error: leave out nothing and raise ContextError."""

POLICIES: tuple[str, ...] = get_args(Policy)
_MANY = 32
Write = Callable[[int], Prompt]
"""The prompt without the turns before an index, but for system texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """An exchange that the model no longer reads."""

    messages: tuple[int, ...]
    """The indices of its messages in the conversation."""
    tokens: int
    """By how many the prompt was shorter without it; below 0 where the template then says more."""
    reason: str
    """The numbers that did not fit when it was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """A prompt that fits, and what was done to make it fit. Indices of messages are those in `turns`."""

    prompt: Prompt
    turns: tuple[Turn, ...]
    """The whole conversation, with what was left out."""
    dropped: tuple[Dropped, ...]
    """What was left out, oldest first, in this turn or before."""
    newly: int
    """How many of them, at the end, were left out in this turn."""
    reserve: int
    """Tokens that are kept free for the reply."""
    window: int
    policy: str
    target: int
    """Down to how many tokens the prompt is brought once something must be left out."""

    @property
    def start(self) -> int:
        """The turns before this index are left out, but for system texts."""
        return start_after(self.dropped)


def start_after(dropped: Sequence[Dropped]) -> int:
    """The index of the first turn behind what was left out."""
    return dropped[-1].messages[-1] + 1 if dropped else 0


def check_policy(policy: str, fraction: float) -> tuple[str, float]:
    """A policy and its fraction as they are; ArgumentError if there is no such policy, or no such fraction."""
    if policy not in POLICIES:
        raise ArgumentError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction <= 1:
        raise ArgumentError(f"fraction must be a number above 0 and at most 1, got {fraction!r}")
    return policy, float(fraction)


def exchanges(turns: Sequence[Turn]) -> list[tuple[int, ...]]:
    """The indices of the messages of each exchange, oldest first. System texts belong to none."""
    found: list[list[int]] = []
    for index, turn in enumerate(turns):
        role = turn.message.role
        if role == "system":
            continue
        if role == "user" or not found:
            found.append([])
        found[-1].append(index)
    return [tuple(indices) for indices in found]


def still_out(dropped: Sequence[Dropped], turns: Sequence[Turn]) -> tuple[Dropped, ...]:
    """Of what was left out, that which stays out in this conversation: whole exchanges of it, but the last."""
    known = exchanges(turns)[:-1]
    count = 0
    while count < min(len(dropped), len(known)) and dropped[count].messages == known[count]:
        count += 1
    return tuple(dropped[:count])


def fit(
    turns: Sequence[Turn],
    write: Write,
    *,
    reserve: int,
    window: int,
    policy: str = "drop_oldest",
    fraction: float = 0.5,
    before: Sequence[Dropped] = (),
) -> Fitted:
    """The prompt for a reply to these turns that leaves room for `reserve` tokens in the window.

    write: prints and encodes the prompt from a turn on. before: what was left out in earlier turns; it stays out.
    Legal is prompt + reserve <= window: the last sampled token needs no place.
    Raises ContextError with the three numbers if not even the system text and the last exchange fit, or under the
    policy "error" if not all does; what `write` raises passes through.
    """
    dropped = list(still_out(before, turns))
    kept_out = len(dropped)
    prompt = write(start_after(dropped))
    candidates = exchanges(turns)[kept_out:-1] if policy != "error" else []
    room = window - reserve
    target = int(room * fraction) if policy == "drop_to_fraction" else room
    if len(prompt.ids) > room and candidates:
        reason = f"a prompt of {len(prompt.ids)} tokens and a reply of up to {reserve} did not fit into {window}"
        at, step = 0, _first_step(prompt, candidates, target, write)
        while len(prompt.ids) > target and at < len(candidates):
            group = candidates[at : at + step]
            shorter = write(group[-1][-1] + 1)
            for messages, tokens in zip(group, _tokens_of(group, prompt, shorter), strict=True):
                dropped.append(Dropped(messages=messages, tokens=tokens, reason=reason))
            prompt = shorter
            at, step = at + len(group), 1
    if len(prompt.ids) > room:
        raise _too_long(prompt, reserve, window, policy, bool(candidates))
    return Fitted(
        prompt=prompt,
        turns=tuple(turns),
        dropped=tuple(dropped),
        newly=len(dropped) - kept_out,
        reserve=reserve,
        window=window,
        policy=policy,
        target=target,
    )


# ---- Long conversations -------------------------------------------------------------------------------------------


def _first_step(prompt: Prompt, candidates: Sequence[tuple[int, ...]], target: int, write: Write) -> int:
    """How many exchanges may be left out at once, so that a history of a thousand is not rendered a thousand times:
    those without which the prompt is surely too long, and one more; or, where there are very many others, those without
    which it turns out to be too long as was to be expected from their sizes."""
    step = min(_hopeless(prompt, candidates, target) + 1, len(candidates))
    left, expected = len(prompt.ids), 0
    for tokens in _sizes(prompt, candidates):
        left -= tokens
        if left <= target:
            break
        expected += 1
    while expected > step + _MANY:
        if len(write(candidates[expected - 1][-1] + 1).ids) > target:
            return expected
        expected = step + (expected - step) * 7 // 8
    return step


def _hopeless(prompt: Prompt, candidates: Sequence[tuple[int, ...]], target: int) -> int:
    """How many exchanges can be left out, the oldest first, such that what is left is surely too long: the ids of the
    messages' own texts, as they are in this prompt, are more than `target`."""
    may_go = {message for exchange in candidates for message in exchange}
    own: dict[int | None, int] = {}  # by the first message without which the text is another; None: it always stays
    for span in prompt.spans:
        texts = [segment for segment in prompt.segments[span.segments] if isinstance(segment, (Text, Kept))]
        messages = [segment.message for segment in texts if segment.message is not None]
        if messages:  # an id has at least one byte, so at most so many ids are the template's alone
            others = sum(len(segment.text.encode()) for segment in texts if segment.message is None)
            first = min((message for message in messages if message in may_go), default=None)
            own[first] = own.get(first, 0) + max(span.ids.stop - span.ids.start - others, 0)
    left = sum(own.values())
    for count, exchange in enumerate(candidates):
        left -= sum(own.get(message, 0) for message in exchange)
        if left <= target:
            return count
    return len(candidates)


def _sizes(prompt: Prompt, group: Sequence[tuple[int, ...]]) -> list[int]:
    """How many ids each exchange but the last of a group has in a prompt, from its first text to that of the next."""
    begins: dict[int, int] = {}
    for span in prompt.spans:
        segments, n_ids = prompt.segments[span.segments], span.ids.stop - span.ids.start
        whole = sum(len(segment.text) for segment in segments)
        at = 0
        for segment in segments:
            if isinstance(segment, (Text, Kept)) and segment.message is not None:
                # from where the text begins that it is a part of, its role included; in a text of many, in proportion
                begins.setdefault(segment.message, span.ids.start + (at * n_ids // whole if len(segments) > 2 else 0))
            at += len(segment.text)
    firsts = [min((begins[message] for message in exchange if message in begins), default=0) for exchange in group]
    return [max(following - first, 0) for first, following in pairwise(firsts)]


def _tokens_of(group: Sequence[tuple[int, ...]], longer: Prompt, shorter: Prompt) -> list[int]:
    """By how many ids each exchange of a group makes a prompt longer; together, by how many it is longer."""
    sizes = _sizes(longer, group) if len(group) > 1 else []
    return [*sizes, len(longer.ids) - len(shorter.ids) - sum(sizes)]


def _too_long(prompt: Prompt, reserve: int, window: int, policy: str, dropped: bool) -> ContextError:
    n = len(prompt.ids)
    what = f"a prompt of {n} tokens" + (" (the system text and the last message alone)" if dropped else "")
    cure = "shorten the message, clear the chat, or lower max_tokens"
    if policy == "error":
        cure += ', or let policy="drop_oldest" leave old turns out'
    return ContextError(
        f"{what} and a reply of up to {reserve} do not fit into the window of {window}; {cure}",
        prompt_tokens=n,
        reply_limit=reserve,
        window=window,
    )
