"""Large texts on their way from the platform to the web process, and from there to who asks.

They are compressed once, where they are made. Written into JSON as they are, and compressed for the way out, ten
thousand series of metrics took four times what it takes to render them: `script/bench metrics`.
"""

from __future__ import annotations

import base64
import gzip

_LEVEL = 1  # the next ones save a few per cent of the size, and take twice the time


def pack(text: bytes) -> str:
    """Compressed, as words for JSON."""
    return base64.b64encode(gzip.compress(text, _LEVEL)).decode("ascii")


def unpack(words: str) -> bytes:
    """The gzip file that `pack` made. Raises ValueError: it made none such."""
    return base64.b64decode(words, validate=True)
