"""What a person means by `gpu0-gpu1`, `n0/gpu0--n0/nvswitch0:nvlink` or `gpu3`: a link or a device of the topology."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.errors import NoSuchPart
from observatory.documents import closest
from observatory.model.device import Device
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Topology, Vertex

_MOST_SHOWN = 8
_LONG, _SHORT = "--", "-"


@dataclass(frozen=True, slots=True)
class Target:
    """A link or a device; the other is None."""

    link: Link | None = None
    device: Device | None = None


def find_target(topology: Topology, node: str, text: str) -> Target:
    """The link or device that `text` names; names without a machine are of the machine `node`.

    Raises:
        NoSuchPart: there is none, or there are several. The mend names what may be meant.
    """
    text = text.strip()
    for link in topology.links:
        if link.id == text:
            return Target(link=link)
    body, _, kind = text.partition(":") if text.rpartition(":")[2] in set(LinkKind) else (text, "", "")
    name = _known(topology, node, body)
    if name is not None and not kind:
        device = topology.device(name)
        if device is not None:
            return Target(device=device)
        raise NoSuchPart(f"{body} is no link and no device, but what links meet at", mend=_links_of(topology, name))
    for first, second in _splits(body):
        a, b = _known(topology, node, first), _known(topology, node, second)
        if a is not None and b is not None:
            return Target(link=_between(topology, a, b, kind))
    raise NoSuchPart(f"there is no link and no device {text!r}", mend=_suggestion(topology, node, body))


def _splits(text: str) -> list[tuple[str, str]]:
    """All ways to read two names in `a--b` or `a-b`: names have hyphens, too."""
    if _LONG in text:
        first, _, second = text.partition(_LONG)
        return [(first, second)]
    parts = text.split(_SHORT)
    return [(_SHORT.join(parts[:at]), _SHORT.join(parts[at:])) for at in range(1, len(parts))]


def _known(topology: Topology, node: str, name: str) -> str | None:
    """The id of a device or vertex called so, with or without its machine."""
    things: list[Device | Vertex] = [*topology.devices, *topology.vertices]
    ids = {thing.id for thing in things}
    return next((full for full in (name, f"{node}/{name}") if full in ids), None)


def _between(topology: Topology, a: str, b: str, kind: str) -> Link:
    found = [link for link in topology.links if {link.a, link.b} == {a, b} and kind in ("", link.kind)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(link.id for link in found[:_MOST_SHOWN])
        raise NoSuchPart(f"several links join {a} and {b}", mend=f"name one: {names}")
    words = f"no {kind} link" if kind else "no link"
    raise NoSuchPart(f"{words} joins {a} and {b} at once", mend=f"{_links_of(topology, a)}; {_links_of(topology, b)}")


def _links_of(topology: Topology, name: str) -> str:
    links = [link for link in topology.links if name in (link.a, link.b)]
    if not links:
        return f"{name} has no links"
    shown = [f"{link.b if link.a == name else link.a} ({link.kind})" for link in links[:_MOST_SHOWN]]
    more = f" and {len(links) - len(shown)} more" if len(links) > len(shown) else ""
    return f"{name} is linked to {', '.join(shown)}{more}"


def _suggestion(topology: Topology, node: str, text: str) -> str:
    """The link or device whose name is nearest."""
    names = [link.id for link in topology.links] + [device.id for device in topology.devices]
    short = [name.replace(f"{node}/", "") for name in names]
    pairs = [f"{a}-{b.partition(':')[0]}" for a, _, b in (name.partition(_LONG) for name in short) if b]
    meant = closest(text, [*names, *short, *pairs])
    return f"did you mean {meant}?" if meant else "observatory topology show lists devices and links"
