"""The emulated fabric: links between emulated devices, by name, as the process that owns them sees it.

Telemetry shows what a link is *advertised* to do. What it really does is drawn from a seed (`draw_truth`) and hidden:
whoever calibrates a cost model on it cannot find its own formula there. Everything takes `time_scale` times as long as
on the real link, because the real times (3 MB at 300 GB/s: 10 us) are shorter than a wake-up.

Only this process changes links; others get `fds` (by SCM_RIGHTS) and can only transfer. Link states act on what is
under way within a quantum of 0.25 to 1 ms.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from dataplane import _ring
from dataplane.errors import DataplaneError
from observatory.model.errors import ExitCode

REFERENCE_BYTES = 3_000_000
REFERENCE_SECONDS = 1e-3
MILLION = 1_000_000


class BadFabric(DataplaneError):
    """Links that cannot be emulated as described, or one that the fabric does not have."""

    exit_code = ExitCode.BAD_INPUT


class LinkFlag(IntEnum):
    """Mirror of `enum mo_link_flags`."""

    UP = 0
    DEGRADED = 1
    DOWN = 2


@dataclass(frozen=True, slots=True)
class LinkDescription:
    """One link as it is advertised: bandwidth of one direction, latency one way. Both directions are alike."""

    name: str
    kind: str
    bandwidth_bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class LinkTruth:
    """What a link really does (unscaled). `efficiency` is true over advertised bandwidth.

    n transfers together get bandwidth / (1 + (n - 1) * sharing_loss); a message is rounded up to whole chunks.
    """

    efficiency: float = 1.0
    latency_seconds: float = 0.0
    overhead_seconds: float = 0.0
    jitter_seconds: float = 0.0
    jitter_seed: int = 0
    sharing_loss: float = 0.0
    chunk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """A link as it is now. `bandwidth_share` is of its true bandwidth."""

    flag: LinkFlag
    bandwidth_share: float
    added_latency_seconds: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """One direction of a link since it was made. `queued_seconds`: what transfers took longer for want of bandwidth."""

    at_seconds: float  # CLOCK_MONOTONIC
    bytes: int
    transfers: int
    queued_seconds: float
    active: int  # transfers under way now


def exact_truth(link: LinkDescription) -> LinkTruth:
    """A link that does what it is advertised to do: for tests, and for comparing a model with itself."""
    return LinkTruth(latency_seconds=link.latency_seconds)


def draw_truth(link: LinkDescription, seed: int) -> LinkTruth:
    """What a link really does, by `seed` and its name, in whatever order links are described.

    - efficiency: even between 0.70 and 0.97;
    - latency: advertised, times 1 plus an exponential of mean 0.3;
    - overhead per message: log-even between 0.1 and 5 us;
    - jitter: even between 0 and 20 % of the latency;
    and outside of what a formula of bytes, bandwidth, latency and queue can express:
    - every second link loses 2 to 15 % of its bandwidth for every further transfer that shares it;
    - every fourth moves whole chunks of 64 KiB, 256 KiB or 1 MiB only.
    """
    draw = random.Random(f"{seed}/{link.name}")
    latency = link.latency_seconds * (1 + draw.expovariate(1 / 0.3))
    return LinkTruth(
        efficiency=draw.uniform(0.70, 0.97),
        latency_seconds=latency,
        overhead_seconds=10 ** draw.uniform(-7, -5.301),
        jitter_seconds=latency * draw.uniform(0, 0.2),
        jitter_seed=draw.getrandbits(63),
        sharing_loss=draw.uniform(0.02, 0.15) if draw.random() < 0.5 else 0.0,
        chunk_bytes=draw.choice([2**16, 2**18, 2**20]) if draw.random() < 0.25 else 0,
    )


def auto_time_scale(links: Iterable[LinkDescription]) -> float:
    """The least scale (1 or more) at which 3 MB take a millisecond or longer on every one of these links."""
    fastest = max((link.bandwidth_bytes_per_second for link in links), default=0.0)
    return max(1.0, REFERENCE_SECONDS * fastest / REFERENCE_BYTES)


class Fabric:
    """Links, their state and their traffic. Any thread may ask; changes come from one thread at a time.

    Args:
        links: as advertised; names are unique.
        time_scale: how many times longer everything takes; None: see `auto_time_scale`.
        seed: what the links' true properties are drawn from; None: they are as advertised.

    Raises:
        BadFabric: no links, a name used twice, or values that no link has.
    """

    def __init__(
        self, links: Sequence[LinkDescription], *, time_scale: float | None = None, seed: int | None = None
    ) -> None:
        self.links: tuple[LinkDescription, ...] = tuple(links)
        self.seed = seed
        self._numbers = {link.name: number for number, link in enumerate(self.links)}
        if len(self._numbers) != len(self.links):
            names = [link.name for link in self.links]
            raise BadFabric(f"two links are called {next(n for n in names if names.count(n) > 1)!r}")
        scale = auto_time_scale(self.links) if time_scale is None else time_scale
        truths = [exact_truth(link) if seed is None else draw_truth(link, seed) for link in self.links]
        try:
            constants = [_constants(link, truth) for link, truth in zip(self.links, truths, strict=True)]
            self._native = _ring.Fabric.create(constants, scale)
        except (_ring.RingError, OverflowError) as error:
            raise BadFabric(f"these links cannot be emulated: {error}") from None

    @property
    def time_scale(self) -> float:
        """How many times longer than on the real links everything takes."""
        return self._native.time_scale

    @property
    def native(self) -> _ring.Fabric:
        """What a consumer of this process takes."""
        return self._native

    @property
    def fds(self) -> tuple[int, int]:
        """To hand on to processes that transfer; they stay the fabric's, and open as long as it lives."""
        return self._native.state_fd, self._native.traffic_fd

    def number(self, name: str) -> int:
        """Of the link in the shared layout. Raises BadFabric."""
        try:
            return self._numbers[name]
        except KeyError:
            raise BadFabric(f"the fabric has no link {name!r}") from None

    def way(self, name: str, *, forward: bool) -> int:
        """The number of one direction of a link, for routes: forward is from its first end to its second."""
        return 2 * self.number(name) + (0 if forward else 1)

    # -- state ---------------------------------------------------------------------------------------------------

    def status(self, name: str) -> LinkStatus:
        """The link as it is now. Raises BadFabric."""
        state = self._native.state(self.number(name))
        return LinkStatus(
            LinkFlag(state["flags"]), state["bandwidth_millionths"] / MILLION, state["added_latency_ps"] / 1e12
        )

    def degrade(self, name: str, bandwidth_share: float, added_latency_seconds: float = 0.0) -> None:
        """Leave the link a part of its bandwidth (above 0, at most 1), and make it slower to answer.

        Raises:
            BadFabric: no such link, or no such part.
        """
        if not 0 < bandwidth_share <= 1 or not 0 <= added_latency_seconds < 1e6:
            raise BadFabric(
                f"{name}: {bandwidth_share:g} of its bandwidth, {added_latency_seconds:g} s more: no link is like that",
                mend="give a share above 0 and at most 1; to cut the link, take it down",
            )
        self._set(name, LinkFlag.DEGRADED, max(1, round(bandwidth_share * MILLION)), added_latency_seconds)

    def take_down(self, name: str) -> None:
        """Cut the link: transfers wait where they are until it is restored. Raises BadFabric."""
        self._set(name, LinkFlag.DOWN, MILLION, 0.0)

    def restore(self, name: str) -> None:
        """Let the link do what it can again. Raises BadFabric."""
        self._set(name, LinkFlag.UP, MILLION, 0.0)

    def _set(self, name: str, flag: LinkFlag, millionths: int, added_latency_seconds: float) -> None:
        self._native.set_state(self.number(name), flag, millionths, round(added_latency_seconds * 1e12))

    # -- traffic -------------------------------------------------------------------------------------------------

    def traffic(self, name: str) -> tuple[Traffic, Traffic]:
        """Forward and back, until now. Raises BadFabric."""
        number = self.number(name)
        return self._traffic(2 * number), self._traffic(2 * number + 1)

    def _traffic(self, way: int) -> Traffic:
        found = self._native.counters(way)
        now = time.monotonic()
        return Traffic(now, found["bytes"], found["transfers"], found["queued_ns"] / 1e9, found["active"])

    def utilisation(self, name: str, before: Traffic, after: Traffic) -> float | None:
        """The part of the *advertised* bandwidth that one direction carried between two looks; None in no time.

        It is what telemetry could tell: a link whose true bandwidth is less never shows all of it.
        """
        elapsed = after.at_seconds - before.at_seconds
        if elapsed <= 0:
            return None
        link = self.links[self.number(name)]
        moved = (after.bytes - before.bytes) * self.time_scale
        return min(1.0, moved / (link.bandwidth_bytes_per_second * elapsed))

    def busiest(self) -> Mapping[str, int]:
        """Bytes moved so far by link, both directions together; links that nothing crossed are left out."""
        moved = {link.name: sum(t.bytes for t in self.traffic(link.name)) for link in self.links}
        return dict(sorted(((n, b) for n, b in moved.items() if b), key=lambda item: -item[1]))


def _constants(link: LinkDescription, truth: LinkTruth) -> _ring.LinkConstants:
    bandwidth, latency = link.bandwidth_bytes_per_second, link.latency_seconds
    if not 1 <= bandwidth < 1e18 or not 0 <= latency < 1e6:
        raise BadFabric(
            f"link {link.name} cannot be emulated with {bandwidth:g} bytes/s and {latency:g} s",
            mend="give its bandwidth in bytes per second, and its latency in seconds",
        )
    return _ring.LinkConstants(
        advertised_bandwidth_bytes_per_second=round(bandwidth),
        advertised_latency_ps=round(latency * 1e12),
        bandwidth_bytes_per_second=max(1, round(bandwidth * truth.efficiency)),
        latency_ps=round(truth.latency_seconds * 1e12),
        overhead_ps=round(truth.overhead_seconds * 1e12),
        jitter_ps=round(truth.jitter_seconds * 1e12),
        jitter_seed=truth.jitter_seed,
        sharing_loss_millionths=round(truth.sharing_loss * MILLION),
        chunk_bytes=truth.chunk_bytes,
    )
