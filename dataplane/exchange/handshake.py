"""What publisher and subscriber say to each other: few messages, all checked, none believed.

One JSON object per datagram (dataplane/control.py), handles by SCM_RIGHTS. This is all there is:

    subscriber  hello       protocol, layouts, policy, hold                       + its page
    publisher   welcome     protocol, layouts, publisher, slot_bytes, ...         + ring, slabs
                refused     code, message, mend, protocol, layouts                and the end of the connection
                dismissed   code, message, mend                                   later, and the end of the connection
    subscriber  leave                                                             the end

`protocol` numbers these messages, `layouts` the structs in shared memory. Both sides say theirs in their first message,
and either refuses a difference with both numbers. `hello` and `refused` keep their form in every version.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeGuard

from dataplane import _ring
from dataplane.errors import BrokenPublisher, OtherVersion, Refused

PROTOCOL = 1
HANDSHAKE_SECONDS = 5.0  # from the connection to its hello, and from the hello to its answer
MOST_SLABS = 32
MOST_DESCRIPTION_BYTES = 16 * 1024

Policy: TypeAlias = Literal["block", "drop_oldest"]
POLICIES: tuple[Policy, ...] = ("block", "drop_oldest")

_SHARED = ("mo_ring_header", "mo_descriptor", "mo_consumer_page")
_WORDS = re.compile(r"[^\x20-\x7e]")


def layouts() -> dict[str, int]:
    """The versions of the structs that publisher and subscriber share, by name."""
    known = _ring.layouts()
    return {name: known[name]["version"] for name in _SHARED}


@dataclass(frozen=True, slots=True)
class Hello:
    """What a subscriber asks for."""

    policy: Policy
    hold: int

    def fields(self) -> dict[str, Any]:
        """As a message."""
        return {"protocol": PROTOCOL, "layouts": layouts(), "policy": self.policy, "hold": self.hold}

    @classmethod
    def read(cls, message: Mapping[str, Any], fds: Sequence[int]) -> Hello:
        """Check a subscriber's first message. Raises Refused."""
        if message["type"] != "hello":
            raise Refused("malformed", f"expected 'hello', got {_quoted(message['type'])}")
        check_versions(message, "subscriber")
        policy, hold = message.get("policy"), message.get("hold")
        if policy not in POLICIES:
            raise Refused("malformed", f"there is no policy {_quoted(policy)}")
        if not _is_count(hold) or hold < 1:
            raise Refused("malformed", "hold is a number of frames, at least 1")
        if len(fds) != 1:
            raise Refused("malformed", f"hello brings one descriptor, the page, not {len(fds)}")
        return cls(policy, hold)


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a publisher grants. `publisher` is a random name of this incarnation of it."""

    publisher: str
    slot_bytes: tuple[int, ...]
    hold: int
    stall_seconds: float
    description: Mapping[str, Any]

    def fields(self) -> dict[str, Any]:
        """As a message."""
        return {
            "protocol": PROTOCOL,
            "layouts": layouts(),
            "publisher": self.publisher,
            "slot_bytes": list(self.slot_bytes),
            "hold": self.hold,
            "stall_seconds": self.stall_seconds,
            "description": dict(self.description),
        }

    @classmethod
    def read(cls, message: Mapping[str, Any], fds: Sequence[int]) -> Welcome:
        """Check a publisher's answer. Raises Refused as the publisher says it, OtherVersion, BrokenPublisher."""
        if message["type"] == "refused":
            raise refusal_of(message)
        if message["type"] != "welcome":
            raise BrokenPublisher(f"expected 'welcome', got {_quoted(message['type'])}")
        check_versions(message, "publisher")
        name, sizes, hold = message.get("publisher"), message.get("slot_bytes"), message.get("hold")
        stall, description = message.get("stall_seconds"), message.get("description")
        if not (isinstance(name, str) and _is_count(hold) and isinstance(stall, int | float)):
            raise BrokenPublisher("the publisher's welcome lacks what it must say")
        if not (isinstance(sizes, list) and all(map(_is_count, sizes)) and isinstance(description, dict)):
            raise BrokenPublisher("the publisher's welcome lacks what it must say")
        if len(fds) != 1 + len(sizes):
            raise BrokenPublisher(f"the publisher sent {len(fds)} descriptors for a ring and {len(sizes)} slab(s)")
        return cls(name, tuple(sizes), hold, float(stall), description)


def check_versions(message: Mapping[str, Any], who: str) -> None:
    """Refuse a peer with another protocol or layout. Raises OtherVersion, with both numbers."""
    given = message.get("layouts")
    theirs = {"protocol": message.get("protocol"), **(given if isinstance(given, dict) else {})}
    ours = {"protocol": PROTOCOL, **layouts()}
    what = next((name for name, version in ours.items() if theirs.get(name) != version), None)
    if what is None:
        return
    their_version, our_version = theirs.get(what), ours[what]
    side = "publisher" if who == "subscriber" else "subscriber"
    known = their_version if _is_count(their_version) else None
    older = who if known is None or known < our_version else side
    raise OtherVersion(
        "version",
        f"the {who} has version {'unknown' if known is None else known} of {what}, the {side} {our_version}",
        mend=f"install the same version of media-observatory for both: that of the {older} is older",
    )


def refused_fields(refusal: Refused) -> dict[str, Any]:
    """A refusal as a message."""
    said = {"code": refusal.code, "message": refusal.message, "mend": refusal.mend}
    return {**said, "protocol": PROTOCOL, "layouts": layouts()}


def refusal_of(message: Mapping[str, Any]) -> Refused:
    """What the publisher said when it refused us."""
    code, words, mend = said_in(message)
    kind = OtherVersion if code == "version" else Refused
    return kind(code, words, mend=mend)


def said_in(message: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Code, words and mend of a refusal or dismissal, fit to be shown to people whatever was sent."""
    mend = message.get("mend")
    return _plain(message.get("code"), 40), _plain(message.get("message"), 500), mend and _plain(mend, 500)


def granted(policy: Policy, grants: Collection[Policy]) -> None:
    """Raises Refused unless the publisher grants that policy."""
    if policy not in grants:
        raise Refused(
            "policy",
            f"the publisher does not grant {policy!r}, only {', '.join(sorted(grants))}",
            mend="ask for another policy, or let the publisher grant it: Publisher(..., grants=('block', ...))",
        )


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _plain(value: object, most: int) -> str:
    return _WORDS.sub("?", str(value))[:most]


def _quoted(value: object) -> str:
    return f"'{_plain(value, 40)}'"
