"""One exception class per cause. Every message says what failed, with the value, and where possible the cure.

    PantheonError
    +-- ArgumentError (ValueError)       a value from the caller is out of range
    +-- ModelFileError                   something is wrong with a file
    |   +-- FileError (OSError)          the operating system refused: open, read, write, map
    |   +-- NotGGUFError                 the file is something else
    |   +-- TruncatedError               the file ends before what it announces
    |   +-- CorruptFileError             the container contradicts itself
    |   +-- MetadataError                a metadata key is missing, of the wrong type, or makes no sense
    +-- SavedFileError                   something is wrong with a saved state or chat
    |   +-- NotSavedFileError            the file is something else
    |   +-- DamagedFileError             it was cut short or changed since it was saved
    |   +-- OtherModelError              it belongs to another model than this one
    +-- UnsupportedError                 valid, but not something that this build can run
    +-- OutOfMemoryError (MemoryError)   an allocation failed; the message says how much was wanted
    +-- BusyError (alias: Busy)          the state, sampler or chat is in use by another call
    +-- CancelledError                   cancel() or a callback stopped the call
    +-- ContextError                     prompt and reply do not fit into the window; carries the numbers
    +-- ISAError                         the instruction set asked for is unknown or cannot run here
    +-- NumericError                     the logits are not finite: damaged weights
    +-- ClosedError                      a model, state, tokenizer or chat was used after close()
    +-- ChatTemplateError                a chat template is missing, broken, or refuses the messages
    +-- BenchmarkError                   a process of `pantheon bench` cannot start, failed or died
    +-- CatalogError                     the catalogue of named models
        +-- NoModelError                 no such model, or it was not fetched yet
        +-- PullError                    fetching or converting a model failed

Rank 0: imports nothing of the package.
"""

from __future__ import annotations


class PantheonError(Exception):
    """Base of everything that this package raises on purpose."""


class ArgumentError(PantheonError, ValueError):
    """A value from the caller is out of range: a token id, a length, a parameter."""


class ModelFileError(PantheonError):
    """Something is wrong with a model file; the subclasses say what."""


class FileError(ModelFileError, OSError):
    """The operating system refused to open, read, write or map a file."""


class NotGGUFError(ModelFileError):
    """The file is not a GGUF file; the message says what it looks like."""


class TruncatedError(ModelFileError):
    """The file ends before what its header announces, as after a broken download."""


class CorruptFileError(ModelFileError):
    """The container contradicts itself: offsets, counts, types or names."""


class MetadataError(ModelFileError):
    """A metadata key is missing, of the wrong type, or holds a value that makes no sense."""


class SavedFileError(PantheonError):
    """Something is wrong with a saved state or chat; the subclasses say what. Nothing of the file was loaded."""


class NotSavedFileError(SavedFileError):
    """The file is something else than a saved state or chat."""


class DamagedFileError(SavedFileError):
    """A saved state or chat that was cut short, or changed, since it was saved."""


class OtherModelError(SavedFileError):
    """A saved state or chat of another model, or of one that computes other bits."""


class UnsupportedError(PantheonError):
    """A valid file that asks for something this build does not have: an architecture, an element type, a tokenizer, a
    version of a format.
    """


class OutOfMemoryError(PantheonError, MemoryError):
    """An allocation failed; nothing that existed before was changed."""


class BusyError(PantheonError):
    """The state, sampler or chat is in use by another call. Wait for it, or give each thread its own."""


Busy = BusyError


class CancelledError(PantheonError):
    """cancel() stopped the call. What had been evaluated stays evaluated."""


class ContextError(PantheonError):
    """Prompt and reply do not fit into the window. Nothing was evaluated and nothing was cut.

    `prompt_tokens`, `reply_limit` and `window` hold the three numbers where they are known, else None.
    """

    def __init__(
        self,
        message: str,
        *,
        prompt_tokens: int | None = None,
        reply_limit: int | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.reply_limit = reply_limit
        self.window = window


class ISAError(PantheonError):
    """The instruction set asked for is unknown or cannot run on this machine."""


class NumericError(PantheonError):
    """The logits are not finite: the weights hold NaN or overflow."""


class ClosedError(PantheonError):
    """A model, state, tokenizer or chat was used after close()."""


class ChatTemplateError(PantheonError):
    """A chat template is missing, cannot be compiled, or refuses the messages.

    `index` is that of the message at fault, and `sentence` what the template itself says, where they are known.
    """

    def __init__(self, message: str, *, index: int | None = None, sentence: str | None = None) -> None:
        super().__init__(message)
        self.index = index
        self.sentence = sentence


class BenchmarkError(PantheonError):
    """A process of `pantheon bench` cannot start, failed or died: most often that of the other engine.

    `crashed` is True if a signal ended it.
    """

    def __init__(self, message: str, *, crashed: bool = False) -> None:
        super().__init__(message)
        self.crashed = crashed


class CatalogError(PantheonError):
    """Base of what can go wrong with named models and the cache folder."""


class NoModelError(CatalogError):
    """No model of that name, or it was not fetched yet; the message names the command that fetches it."""


class PullError(CatalogError):
    """Fetching, checking or converting a model failed. The cache folder is as it was before."""
