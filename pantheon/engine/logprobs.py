"""Log-probabilities of sampled tokens, from the model's own distribution.

Rank 3: imports _native and tokenizer. numpy is imported when there is something to measure.
"""

from __future__ import annotations

from dataclasses import dataclass

from pantheon import _native
from pantheon.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability, <= 0.

    It is the model's own distribution: the softmax of the logits in float64, before logit_bias, penalties, temperature
    and filters. So the sampled token need not be among the likeliest, and temperature 0 changes nothing here.
    """

    id: int
    bytes: bytes
    """As the vocabulary has them, a space in front included; of a control token its spelling. They need not be whole
    characters."""
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    """Of a sampled token: the likeliest ones in its place, itself included if it is one of them; lower ids first on
    ties."""


def measure(logits: _native.Floats, token: int, n_top: int, tokenizer: Tokenizer) -> TokenLogprob:
    """The sampled token with its n_top likeliest rivals. logits: float32[n_vocab], finite."""
    import numpy as np

    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    n_top = min(n_top, len(wide))
    likeliest: list[int] = []
    if n_top:
        least = np.partition(wide, -n_top)[-n_top]
        candidates = np.flatnonzero(wide >= least)  # ascending, and more than n_top where some are equal
        likeliest = candidates[np.argsort(-wide[candidates], kind="stable")[:n_top]].tolist()
    top = tuple(TokenLogprob(id=i, bytes=tokenizer.piece(i), logprob=float(wide[i])) for i in likeliest)
    return TokenLogprob(id=token, bytes=tokenizer.piece(token), logprob=float(wide[token]), top=top)
