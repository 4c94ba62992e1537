"""The engine: models, states and tokenizers over the C core. It knows ids and text, nothing of chats.

Rank 3. What is public is re-exported by the package itself.
"""

from pantheon.engine.generate import FinishReason, Reply, ReplyStream, Timings, Usage
from pantheon.engine.logprobs import TokenLogprob
from pantheon.engine.metadata import Metadata
from pantheon.engine.model import Model, ModelInfo, load
from pantheon.engine.sampling import SamplingParams
from pantheon.engine.state import State
from pantheon.engine.tokenizer import TextDecoder, Tokenizer

__all__ = [
    "FinishReason",
    "Metadata",
    "Model",
    "ModelInfo",
    "Reply",
    "ReplyStream",
    "SamplingParams",
    "State",
    "TextDecoder",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "Usage",
    "load",
]
