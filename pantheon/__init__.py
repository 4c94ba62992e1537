"""Load a chat model from a GGUF file on an ordinary CPU, talk with it, and see exactly what it reads.

import pantheon

model = pantheon.load("smollm2")
chat = model.chat(system="You are a helpful assistant.")
for piece in chat.stream("What is the capital of France?"):
    print(piece, end="", flush=True)
"""

from pantheon._native import version as _version
from pantheon.chat import Chat, Message
from pantheon.engine import (
    Metadata,
    Model,
    ModelInfo,
    Reply,
    ReplyStream,
    SamplingParams,
    State,
    Timings,
    Tokenizer,
    TokenLogprob,
    Usage,
    load,
)
from pantheon.errors import (
    ArgumentError,
    BenchmarkError,
    Busy,
    BusyError,
    CancelledError,
    CatalogError,
    ChatTemplateError,
    ClosedError,
    ContextError,
    CorruptFileError,
    DamagedFileError,
    FileError,
    ISAError,
    MetadataError,
    ModelFileError,
    NoModelError,
    NotGGUFError,
    NotSavedFileError,
    NumericError,
    OtherModelError,
    OutOfMemoryError,
    PantheonError,
    PullError,
    SavedFileError,
    TruncatedError,
    UnsupportedError,
)

__version__ = _version()

__all__ = [
    "ArgumentError",
    "BenchmarkError",
    "Busy",
    "BusyError",
    "CancelledError",
    "CatalogError",
    "Chat",
    "ChatTemplateError",
    "ClosedError",
    "ContextError",
    "CorruptFileError",
    "DamagedFileError",
    "FileError",
    "ISAError",
    "Message",
    "Metadata",
    "MetadataError",
    "Model",
    "ModelFileError",
    "ModelInfo",
    "NoModelError",
    "NotGGUFError",
    "NotSavedFileError",
    "NumericError",
    "OtherModelError",
    "OutOfMemoryError",
    "PantheonError",
    "PullError",
    "Reply",
    "ReplyStream",
    "SamplingParams",
    "SavedFileError",
    "State",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "TruncatedError",
    "UnsupportedError",
    "Usage",
    "__version__",
    "load",
]
