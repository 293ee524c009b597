"""Emulated links under a job: the fabric of a topology, and the path that each edge takes through it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from dataplane.errors import DataplaneError
from dataplane.fabric import Fabric, LinkDescription
from dataplane.links.emulated import EmulatedPath
from observatory.app.errors import PlatformError
from observatory.app.placing import Placed
from observatory.app.typed import TypedPipeline
from observatory.model.cost import CostParameters
from observatory.model.errors import ModelError
from observatory.model.link import LinkState
from observatory.model.manifest import LinkEmulation
from observatory.model.topology import Topology
from observatory.topology.paths import Path, PathFinder

EXACT = "exact"
AUTO = "auto"


class CannotEmulate(PlatformError):
    """An edge whose links cannot be emulated: no path, a link that is down or of which too little is known."""


@dataclass(frozen=True, slots=True)
class LinkWish:
    """How links are to be emulated.

    `time_scale` None: the least at which 3 MB take a millisecond on every link. `seed` None: links do what they are
    advertised to do; else what they really do is drawn from it, and hidden.
    """

    time_scale: float | None
    seed: int | None


def parse_wish(scale: str | None, seed: str | None) -> LinkWish | None:
    """The options `--emulate-links` and `--link-seed`; without the first there is no emulation.

    Raises:
        ModelError: a scale or a seed that is none.
    """
    if scale is None:
        if seed is not None:
            raise ModelError("--link-seed says something of emulated links only", mend="add --emulate-links")
        return None
    return LinkWish(_scale(scale), _seed(seed))


def _scale(text: str) -> float | None:
    if text == AUTO:
        return None
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 1 <= scale <= 1e6:
        raise ModelError(
            f"{text!r} is no time scale for --emulate-links",
            mend=f"write a number from 1 to 1,000,000, or {AUTO}; before a PIPELINE write --emulate-links={AUTO}",
        )
    return scale


def _seed(text: str | None) -> int | None:
    if text is None:
        return secrets.randbits(32)
    if text == EXACT:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(f"{text!r} is no seed for --link-seed", mend=f"write a whole number, or {EXACT}")
    return int(text)


@dataclass(frozen=True, slots=True)
class EdgeRoute:
    """The path of one edge: link ids, and the same as the fabric's ways."""

    links: tuple[str, ...]
    path: EmulatedPath


class EmulatedLinks:
    """The fabric of one topology.

    Raises:
        CannotEmulate: nothing is known of any of its links.
    """

    def __init__(self, topology: Topology, wish: LinkWish) -> None:
        described = [
            LinkDescription(link.id, link.kind.value, link.bandwidth_bytes_per_second, link.latency_seconds)
            for link in topology.links
            if link.bandwidth_bytes_per_second is not None and link.latency_seconds is not None
        ]
        if not described:
            raise CannotEmulate(
                f"topology {topology.name or '(no name)'} knows bandwidth and latency of no link",
                mend="give them in a topology file (--topology FILE), or leave --emulate-links out",
            )
        self.fabric = Fabric(described, time_scale=wish.time_scale, seed=wish.seed)
        for link in topology.links:
            if link.state is LinkState.DOWN and any(d.name == link.id for d in described):
                self.fabric.take_down(link.id)

    @property
    def emulation(self) -> LinkEmulation:
        """What the run's manifest says of it."""
        return LinkEmulation(time_scale=self.fabric.time_scale, seed=self.fabric.seed)

    @property
    def words(self) -> str:
        """One line for people."""
        seed = self.fabric.seed
        truth = "as advertised" if seed is None else f"true properties hidden, seed {seed}"
        return f"links are emulated, {self.fabric.time_scale:g} times slower than described, {truth}"

    def routes(self, typed: TypedPipeline, placed: Placed) -> Mapping[str, EdgeRoute]:
        """By the key of the edge (`a->b`, `a->b:audio`); edges whose two devices are the same are left out.

        Raises:
            CannotEmulate: an edge has no path, or crosses a link that is down or of unknown bandwidth or latency.
        """
        finder = PathFinder(placed.topology, placed.decision.cost_parameters)
        devices = placed.placement.devices
        found = {}
        for edge in typed.edges:
            source, target = devices[edge.producer], devices[edge.consumer]
            if source != target:
                key = edge.name if edge.port == "video" else f"{edge.name}:{edge.port}"
                found[key] = self.route(finder, edge.name, source, target, edge.bytes_per_frame)
        return found

    def route(self, finder: PathFinder, edge: str, source: str, target: str, payload_bytes: int) -> EdgeRoute:
        """The best path of one edge between two different devices; raises as `routes`."""
        topology = finder.graph.topology
        path = finder.best(source, target, payload_bytes)
        if path.seconds is None:
            raise _refusal(edge, source, target, path, topology, payload_bytes)
        return EdgeRoute(path.ids, self._ways(path, source, topology))

    def _ways(self, path: Path, source: str, topology: Topology) -> EmulatedPath:
        """The path as directions of links, cut where a device passes data on: the whole frame is staged there."""
        devices = {device.id for device in topology.devices}
        segments: list[list[int]] = [[]]
        at = source
        for link in path.links:
            if at != source and at in devices:
                segments.append([])
            try:
                segments[-1].append(self.fabric.way(link.id, forward=link.a == at))
            except DataplaneError as error:
                raise CannotEmulate(
                    f"{error}", mend="the topology file changed after the platform began: start it again"
                ) from None
            at = link.b if link.a == at else link.a
        return EmulatedPath(segments=tuple(tuple(segment) for segment in segments))


def _refusal(edge: str, source: str, target: str, path: Path, topology: Topology, payload: int) -> CannotEmulate:
    """Why an edge has no path, with the link that is to blame."""
    words = f"edge {edge} cannot cross from {source} to {target}"
    if path.links:
        return CannotEmulate(
            f"{words}: {path.reason}", mend="give it in the topology file, or leave --emulate-links out"
        )
    mended = topology.model_copy(
        update={"links": tuple(link.model_copy(update={"state": LinkState.UP}) for link in topology.links)}
    )
    down = {link.id for link in topology.links if link.state is LinkState.DOWN}
    cut = [name for name in PathFinder(mended, CostParameters()).best(source, target, payload).ids if name in down]
    if cut:
        return CannotEmulate(
            f"{words}: link {cut[0]} is down", mend="set its state to up in the topology file, or describe another way"
        )
    return CannotEmulate(
        f"{words}: {path.reason}", mend="describe a link between them, or let both operators run on one device"
    )
