"""What a playlist says of a codec: the strings of RFC 6381, read from the header that a player reads too.

Sources: ISO/IEC 14496-15 annex E (avc1, hvc1), the AV1 binding's section 5 (av01), the VP9 binding (vp09), RFC 6381
section 3.3 (mp4a).
"""

from __future__ import annotations

from dataplane.operators.piece_writer import boxes

_TO_SAMPLE_ENTRY = ("moov", "trak", "mdia", "minf", "stbl", "stsd")
_VISUAL_ENTRY_BYTES = 78  # of a sample entry, before the boxes in it
_AUDIO_ENTRY_BYTES = 28
_CONFIG = {"avc1": "avcC", "hvc1": "hvcC", "hev1": "hvcC", "av01": "av1C", "vp09": "vpcC", "mp4a": "esds"}
_FIXED = {"ac-3": "ac-3", "ec-3": "ec-3", "Opus": "opus", "fLaC": "fLaC"}


def codec_string(init: bytes) -> str | None:
    """The codec of the only track of a header (ftyp, moov); None for one that has no such string."""
    entry = _sample_entry(init)
    if entry is None:
        return None
    kind, start, end = entry
    if kind in _FIXED:
        return _FIXED[kind]
    skipped = _AUDIO_ENTRY_BYTES if kind == "mp4a" else _VISUAL_ENTRY_BYTES
    for name, first, last in boxes(init, start + skipped, end):
        if name == _CONFIG.get(kind):
            return _READERS[name](kind, init[first:last])
    return None


def _sample_entry(init: bytes) -> tuple[str, int, int] | None:
    start, end = 0, len(init)
    for wanted in _TO_SAMPLE_ENTRY:
        found = next(((s, e) for kind, s, e in boxes(init, start, end) if kind == wanted), None)
        if found is None:
            return None
        start, end = found
    return next(boxes(init, start + 8, end), None)  # after version, flags and count


def _avc(kind: str, config: bytes) -> str:
    """Profile, constraint flags, level: the three bytes after the version."""
    return f"{kind}.{config[1:4].hex()}"


def _hevc(kind: str, config: bytes) -> str:
    """Profile; compatibility flags, lowest bit first; tier and level; constraint bytes without the trailing zeros."""
    space = ("", "A", "B", "C")[config[1] >> 6]
    tier = "H" if config[1] & 0x20 else "L"
    flags = int(f"{int.from_bytes(config[2:6], 'big'):032b}"[::-1], 2)
    constraints = "".join(f".{byte:X}" for byte in config[6:12].rstrip(b"\0"))
    return f"{kind}.{space}{config[1] & 0x1F}.{flags:X}.{tier}{config[12]}{constraints}"


def _av1(kind: str, config: bytes) -> str:
    profile, level = config[1] >> 5, config[1] & 0x1F
    tier = "H" if config[2] & 0x80 else "M"
    depth = (12 if config[2] & 0x20 else 10) if config[2] & 0x40 else 8
    return f"{kind}.{profile}.{level:02d}{tier}.{depth:02d}"


def _vp9(kind: str, config: bytes) -> str:
    """After version and flags: profile, level, and the depth in the upper half of a byte."""
    return f"{kind}.{config[4]:02d}.{config[5]:02d}.{config[6] >> 4:02d}"


def _mp4a(kind: str, config: bytes) -> str | None:
    """Object type, and for AAC its audio object type: the first five bits of the decoder's configuration."""
    at, found = 4, None
    while at < len(config):
        tag, at = config[at], at + 1
        while at < len(config) and config[at] & 0x80:  # the size: seven bits a byte
            at += 1
        at += 1
        if tag == 3:
            at += 3  # id and flags; descriptors follow within it
        elif tag == 4:
            found = config[at]
            at += 13
        elif tag == 5:
            first = config[at] >> 3
            audio = first if first != 31 else 32 + ((config[at] & 7) << 3 | config[at + 1] >> 5)
            return f"{kind}.{found:x}.{audio}"
        else:
            break
    return None if found is None else f"{kind}.{found:x}"


_READERS = {"avcC": _avc, "hvcC": _hevc, "av1C": _av1, "vpcC": _vp9, "esds": _mp4a}
