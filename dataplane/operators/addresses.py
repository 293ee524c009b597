"""What an address means: which kind of source it is, and how libavformat has to open it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from dataplane.errors import WrongAddress

RECEIVE_BUFFER_BYTES = 8 << 20  # asked of the kernel; it gives at most net.core.rmem_max
FIFO_BYTES = 16 << 20  # libavformat's own, behind it: more than 6 s of 20 Mbit/s
TS_PACKET_BYTES = 188
LARGEST_DATAGRAM_BYTES = 65507
ANALYSE_SECONDS = 12  # of a live source, to meet a key frame; it ends as soon as all is known


class Kind(Enum):
    """Kinds of sources."""

    GENERATED = "generated"
    FILE = "file"
    URL = "url"  # read like a file
    UDP = "udp"  # MPEG-TS
    RTP = "rtp"
    SDP = "sdp"  # RTP, described by a file
    HLS = "hls"  # live or not: the playlist says it


DATAGRAMS = frozenset({Kind.UDP, Kind.RTP, Kind.SDP})
"""Sources that come whether they are read or not."""


@dataclass(frozen=True, slots=True)
class Input:
    """Where media comes from: a file or URL, or a libavfilter graph that generates it.

    `address` is where it is really read, when a gateway stands before it.
    """

    location: str
    generated: bool = False
    address: str | None = None

    @property
    def title(self) -> str:
        """For people: without passwords."""
        return f"generated {self.location}" if self.generated else without_secrets(self.location)

    @property
    def readable(self) -> str:
        """What libavformat is told to read."""
        return self.location if self.address is None else self.address

    @property
    def kind(self) -> Kind:
        """Which kind of source this is. Raises WrongAddress for an SRT address that no gateway stands before."""
        if self.generated:
            return Kind.GENERATED
        scheme = _scheme(self.readable)
        if scheme == "srt":
            mend = "`observatory up` and `observatory run` start it; a program of your own uses SrtGateway"
            raise WrongAddress("SRT is read through a gateway, and there is none", file=self.title, mend=mend)
        if scheme in ("udp", "rtp"):
            return Kind(scheme)
        path = urlsplit(self.readable).path if scheme else self.readable
        suffix = Path(path).suffix.lower()
        if suffix in (".m3u8", ".m3u"):
            return Kind.HLS
        if suffix == ".sdp":
            return Kind.SDP
        return Kind.URL if scheme else Kind.FILE


@dataclass(frozen=True, slots=True)
class Opening:
    """The arguments of `av.open`."""

    url: str
    format: str | None
    options: dict[str, str]


def opening(source: Input) -> Opening:
    """How libavformat has to open a source that comes over the network. Raises WrongAddress for a wrong address."""
    location = source.readable
    options = {"correct_ts_overflow": "0"}  # it mends one wrap and breaks a day later: dataplane.operators.timeline
    kind = source.kind
    if kind in DATAGRAMS:
        options |= {"analyzeduration": str(ANALYSE_SECONDS * 1_000_000), "probesize": str(RECEIVE_BUFFER_BYTES)}
        options["buffer_size"] = str(RECEIVE_BUFFER_BYTES)
    match kind:
        case Kind.UDP:
            options |= {"fifo_size": str(FIFO_BYTES // TS_PACKET_BYTES), "pkt_size": str(LARGEST_DATAGRAM_BYTES)}
            asked = _query(location)
            for name in options.keys() & asked.keys():
                del options[name]  # the address says otherwise
            return Opening(_bound(location, source), "mpegts", options)
        case Kind.RTP:
            return Opening(_bound(location, source), None, options)
        case Kind.SDP:
            options["protocol_whitelist"] = "file,http,https,tcp,tls,crypto,data,rtp,udp"
            local = _described_address(location)
            return Opening(as_url(location), None, options | ({"localaddr": local} if local else {}))
        case _:
            return Opening(as_url(location), None, options)


def as_url(location: str) -> str:
    """A path must not look like a URL: libavformat would take 12:30.mp4 for the protocol "12"."""
    return location if "://" in location else str(Path(location).absolute())


def without_secrets(location: str) -> str:
    """An address with its passwords and pass phrases hidden."""
    if "://" not in location:
        return location
    hidden = re.sub(r"(?<=://)([^/@:]*):[^/@]+@", r"\1:***@", location)
    return re.sub(r"(?i)([?&](?:passphrase|password|token|key)=)[^&]*", r"\1***", hidden)


def _scheme(location: str) -> str:
    return location.split("://", 1)[0].lower() if "://" in location else ""


def _query(location: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(location).query, keep_blank_values=True))


def _bound(location: str, source: Input) -> str:
    """The address, listened to only where it says: libavformat would listen on every interface of the machine."""
    parts = urlsplit(location)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if port is None:
        words = "this address has no port"
        raise WrongAddress(words, file=source.title, mend=f"as in {parts.scheme}://127.0.0.1:5004")
    if host in (None, "") or "localaddr" in _query(location) or not _is_unicast(host):
        return location
    query = f"{parts.query}&localaddr={host}" if parts.query else f"localaddr={host}"
    return urlunsplit(parts._replace(query=query))


def _is_unicast(host: str | None) -> bool:
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return bool(host)  # a name
    return not (address.is_multicast or address.is_unspecified)


def _described_address(path: str) -> str | None:
    """The loopback address that a session description names: then nobody else needs to reach us."""
    try:
        words = Path(path).read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^c=IN IP[46] (127\.[\d.]+|::1)\s*$", words, re.MULTILINE)
    return found[1] if found else None
