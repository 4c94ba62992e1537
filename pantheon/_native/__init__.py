"""The only folder that talks to C: statuses become exceptions, pointers become handles, bytes become values.

Rank 1: imports errors, _arrays, _gate. Nothing above it sees `ffi`. One function per C function, no policy. This file
holds the names that the rest of the package uses; its imports say where each of them lives.

What the folder deliberately does not do: convert or check what C checks itself (ranges of ids, parameters, files).
"""

from pantheon._arrays import Floats as Floats
from pantheon._arrays import IdBuffer as IdBuffer
from pantheon._arrays import Ids as Ids
from pantheon._arrays import as_ids as as_ids
from pantheon._native.base import ERROR_BY_STATUS as ERROR_BY_STATUS
from pantheon._native.base import Progress as Progress
from pantheon._native.base import path_bytes as path_bytes
from pantheon._native.base import text_bytes as text_bytes
from pantheon._native.facts import default_threads as default_threads
from pantheon._native.facts import has_blas as has_blas
from pantheon._native.facts import isa_available as isa_available
from pantheon._native.facts import known as known
from pantheon._native.facts import read_bandwidth as read_bandwidth
from pantheon._native.facts import version as version
from pantheon._native.files import QUANTIZE_TYPES as QUANTIZE_TYPES
from pantheon._native.files import AnyGGUF as AnyGGUF
from pantheon._native.files import GGUFHandle as GGUFHandle
from pantheon._native.files import Tensor as Tensor
from pantheon._native.files import gguf_files as gguf_files
from pantheon._native.files import gguf_keys as gguf_keys
from pantheon._native.files import gguf_rows as gguf_rows
from pantheon._native.files import gguf_tensors as gguf_tensors
from pantheon._native.files import gguf_value as gguf_value
from pantheon._native.files import gguf_version as gguf_version
from pantheon._native.files import quantize as quantize
from pantheon._native.model import ModelFacts as ModelFacts
from pantheon._native.model import ModelHandle as ModelHandle
from pantheon._native.model import model_facts as model_facts
from pantheon._native.model import model_fingerprint as model_fingerprint
from pantheon._native.sampling import SamplerHandle as SamplerHandle
from pantheon._native.sampling import sample as sample
from pantheon._native.sampling import stream_tokens as stream_tokens
from pantheon._native.state import GUESSES_MAX as GUESSES_MAX
from pantheon._native.state import StateHandle as StateHandle
from pantheon._native.state import state_advance as state_advance
from pantheon._native.state import state_bytes as state_bytes
from pantheon._native.state import state_cancel as state_cancel
from pantheon._native.state import state_clear_cancel as state_clear_cancel
from pantheon._native.state import state_eval as state_eval
from pantheon._native.state import state_length as state_length
from pantheon._native.state import state_load as state_load
from pantheon._native.state import state_logits as state_logits
from pantheon._native.state import state_reset as state_reset
from pantheon._native.state import state_rewind as state_rewind
from pantheon._native.state import state_save as state_save
from pantheon._native.state import state_speculate as state_speculate
from pantheon._native.state import state_speculation as state_speculation
from pantheon._native.state import state_tokens as state_tokens
from pantheon._native.state import states_eval as states_eval
from pantheon._native.tokenizer import ENCODE_BOS as ENCODE_BOS
from pantheon._native.tokenizer import ENCODE_EOS as ENCODE_EOS
from pantheon._native.tokenizer import ENCODE_SPECIAL as ENCODE_SPECIAL
from pantheon._native.tokenizer import TOKEN_CONTROL as TOKEN_CONTROL
from pantheon._native.tokenizer import AnyTokenizer as AnyTokenizer
from pantheon._native.tokenizer import TokenizerFacts as TokenizerFacts
from pantheon._native.tokenizer import TokenizerHandle as TokenizerHandle
from pantheon._native.tokenizer import adds_space as adds_space
from pantheon._native.tokenizer import detokenize as detokenize
from pantheon._native.tokenizer import token_id as token_id
from pantheon._native.tokenizer import token_piece as token_piece
from pantheon._native.tokenizer import token_type as token_type
from pantheon._native.tokenizer import tokenize as tokenize
from pantheon._native.tokenizer import tokenizer_facts as tokenizer_facts
