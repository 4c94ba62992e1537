"""What cffi builds from the marked part of csrc/pantheon.h: `lib` has its functions and constants.

Both are Any on purpose: cdata has no static types, and _native/, the only importer, returns typed Python values.
"""

from typing import Any

ffi: Any
lib: Any
