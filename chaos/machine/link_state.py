"""Links of the emulated machine as they are now: one change acts on the fabric, on NVML's memory and on the kernel log.

What a real machine would show of it: an NVLink that carries no traffic is inactive in NVML; a PCI Express link that
trained narrower or slower says so in sysfs and NVML; a GPU behind a PCI Express link that is down has fallen off the
bus. What is only slower (`bandwidth`, `latency`, `loss`) shows nowhere but in what crosses the link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chaos.errors import BadChange
from chaos.machine import quantities
from chaos.machine.kernel_log import KernelLog
from chaos.machine.memory import MachineMemory
from chaos.machine.plan import GpuPlan, MachinePlan, generation_of, nvlink_count, speed_of
from dataplane.fabric import BadFabric, Fabric
from observatory.documents import did_you_mean
from observatory.model.link import Link, LinkKind, LinkState

LANES = (1, 2, 4, 8, 12, 16, 32)
NVLINK_ERROR, FELL_OFF_THE_BUS = 74, 79
"""Xids that the driver tells of it."""

_MOST_ERRORS = 10**9
_BUSES = frozenset({LinkKind.PCIE, LinkKind.CXL})
_WIRES = frozenset({LinkKind.RDMA, LinkKind.ETHERNET, LinkKind.NETWORK})
_BUS_ERRORS = {
    "errors": ("correctable", "Correctable", "Data Link Layer"),
    "nonfatal": ("nonfatal", "Uncorrectable (Non-Fatal)", "Transaction Layer"),
    "fatal": ("fatal", "Uncorrectable (Fatal)", "Transaction Layer"),
}
_COUNTED = frozenset({"errors", "nonfatal", "fatal", "replays", "recoveries"})
_NVLINK_ERRORS = {"errors": "crc_flit_errors", "replays": "replay_errors", "recoveries": "recovery_errors"}


@dataclass(frozen=True, slots=True)
class LinkNow:
    """A link as it is now. `bandwidth_share` is beside what width and speed take away; errors ever, by their kind."""

    link: Link
    width: int | None
    best_width: int | None
    generation: int | None
    best_generation: int | None
    bandwidth_share: float = 1.0
    added_latency_seconds: float = 0.0
    loss: float = 0.0
    down: bool = False
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """What is left of the bandwidth that the link began with; never more than that."""
        first, now = self.link, self.bandwidth_share * (1 - self.loss)
        if first.kind is LinkKind.NVLINK:
            began: int | None = nvlink_count(first) if first.width is None else first.width
        else:
            began = first.width
        if self.width is not None and began:
            now *= self.width / began
        began_generation = generation_of(first.speed)
        if self.generation is not None and began_generation is not None:
            now *= speed_of(self.generation) / speed_of(began_generation)
        return min(1.0, now)

    @property
    def state(self) -> LinkState:
        """Whether it carries traffic, and all that it could."""
        if self.down or self.width == 0:
            return LinkState.DOWN
        slow = self.generation is not None and self.generation < (self.best_generation or 0)
        narrow = self.width is not None and self.width < (self.best_width or 0)
        hindered = self.share < 1 or self.added_latency_seconds > 0
        return LinkState.DEGRADED if slow or narrow or hindered else LinkState.UP


def keys_of(kind: LinkKind) -> tuple[str, ...]:
    """What can be set of a link of that kind."""
    common = ("state", "width", "bandwidth", "latency")
    if kind is LinkKind.NVLINK:
        return (*common, *_NVLINK_ERRORS)
    if kind in _BUSES:
        return (*common, "speed", "replays", *_BUS_ERRORS)
    return (*common, "loss") if kind in _WIRES else common


class MachineLinks:
    """The links of one machine. Changes come from one thread at a time."""

    def __init__(self, plan: MachinePlan, fabric: Fabric | None, memory: MachineMemory, log: KernelLog) -> None:
        self._plan = plan
        self._fabric = fabric
        self._memory = memory
        self._log = log
        self._now = {link.id: _at_first(link) for link in plan.topology.links}
        self._bus_ids = {f.link_id: f.bus_id for f in plan.tree.functions.values() if f.link_id is not None}

    def now(self, link_id: str) -> LinkNow:
        """The link as it is now; one that somebody cut in the fabric is down."""
        found = self._now[link_id]
        return replace(found, down=True) if self._is_cut(link_id) and not found.down else found

    def _is_cut(self, link_id: str) -> bool:
        if self._fabric is None:
            return False
        try:
            return self._fabric.status(link_id).flag.name == "DOWN"
        except BadFabric:
            return False

    def change(self, link: Link, changes: Mapping[str, str]) -> LinkNow:
        """Make the link so; nothing changes where one of the changes cannot be.

        Raises:
            BadChange: no link of that kind has such a property or such a value.
        """
        known = keys_of(link.kind)
        for key in changes:
            if key not in known:
                raise BadChange(
                    f"a link of kind {link.kind} has no {key!r} that could be set", mend=did_you_mean(key, known)
                )
        before = self._now[link.id]
        after = before
        added: dict[str, int] = {}
        for key, text in changes.items():
            if key in _COUNTED:
                added[key] = quantities.whole(key, text, 1, _MOST_ERRORS)
            else:
                after = _CHANGES[key](after, text)
        after = replace(after, errors=self._count(link, after, added))
        self._now[link.id] = after
        self._to_fabric(after)
        self._to_gpus(before, after, added)
        self._to_log(before, after, added)
        return after

    @staticmethod
    def _count(link: Link, now: LinkNow, added: Mapping[str, int]) -> dict[str, int]:
        errors = dict(now.errors)
        for key, count in added.items():
            kind = _BUS_ERRORS[key][0] if link.kind in _BUSES and key in _BUS_ERRORS else key
            errors[kind] = errors.get(kind, 0) + count
        return errors

    # -- where it shows ----------------------------------------------------------------------------------------------

    def _to_fabric(self, now: LinkNow) -> None:
        if self._fabric is None:
            return
        try:
            if now.state is LinkState.DOWN:
                self._fabric.take_down(now.link.id)
            elif now.share < 1 or now.added_latency_seconds > 0:
                self._fabric.degrade(now.link.id, max(now.share, 1e-6), now.added_latency_seconds)
            else:
                self._fabric.restore(now.link.id)
        except BadFabric:
            return  # too little is known of it to be emulated: it shows in telemetry only

    def _to_gpus(self, before: LinkNow, now: LinkNow, added: Mapping[str, int]) -> None:
        for number, gpu in enumerate(self._plan.gpus):
            if gpu.pcie.link_id == now.link.id:
                with self._memory.change(number) as state:
                    self._bus_of_gpu(before, now, added, state)
                if now.down and not before.down:
                    self._memory.tell_xid(number, FELL_OFF_THE_BUS)
            elif any(nvlink.link_id == now.link.id for nvlink in gpu.nvlinks):
                with self._memory.change(number) as state:
                    _nvlinks_of_gpu(gpu, now, added, state)
                if now.down and not before.down:
                    self._memory.tell_xid(number, NVLINK_ERROR)

    @staticmethod
    def _bus_of_gpu(before: LinkNow, now: LinkNow, added: Mapping[str, int], state: Any) -> None:
        if now.width is not None:
            state["pcie_width"] = now.width
        if now.generation is not None:
            state["pcie_generation"] = now.generation
        if now.down != before.down:
            state["lost"] = now.down
        state["pcie_replays"] += added.get("replays", 0)
        for key, (kind, _, _) in _BUS_ERRORS.items():
            state[f"pcie_{kind}_errors"] += added.get(key, 0)

    def _to_log(self, before: LinkNow, now: LinkNow, added: Mapping[str, int]) -> None:
        if now.link.kind is LinkKind.NVLINK:
            if now.down and not before.down:
                for gpu in self._plan.gpus:
                    if any(nvlink.link_id == now.link.id for nvlink in gpu.nvlinks):
                        self._log.xid(gpu.bus_id, NVLINK_ERROR, "pid='<unknown>', name=<unknown>, NVLink: fatal error")
            return
        bus_id = self._bus_ids.get(now.link.id)
        if bus_id is None or now.link.kind not in _BUSES:
            return
        port = self._plan.tree.functions[bus_id].parent
        for key, (_, severity, layer) in _BUS_ERRORS.items():
            if key in added:
                self._log.aer(bus_id, port, severity, layer)
        if now.down and not before.down and any(gpu.bus_id == bus_id for gpu in self._plan.gpus):
            words = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
            self._log.xid(bus_id, FELL_OFF_THE_BUS, words)


def _nvlinks_of_gpu(gpu: GpuPlan, now: LinkNow, added: Mapping[str, int], state: Any) -> None:
    """Of the NVLinks that are this link the first ones are active; errors come on the first of all."""
    mine = [index for index, nvlink in enumerate(gpu.nvlinks) if nvlink.link_id == now.link.id]
    for position, index in enumerate(mine):
        state["links"][index]["active"] = not now.down and position < (len(mine) if now.width is None else now.width)
    for key, count in added.items():
        state["links"][mine[0]][_NVLINK_ERRORS[key]] += count


def _at_first(link: Link) -> LinkNow:
    if link.kind is LinkKind.NVLINK:
        best: int | None = nvlink_count(link)
        width = best if link.width is None else link.width
    else:
        width, best = link.width, link.best_width or link.width
    bus = link.kind in _BUSES
    return LinkNow(
        link=link,
        width=width,
        best_width=best,
        generation=generation_of(link.speed) if bus else None,
        best_generation=generation_of(link.best_speed or link.speed) if bus else None,
        down=link.state is LinkState.DOWN,
    )


# -- one change each -------------------------------------------------------------------------------------------------


def _width(now: LinkNow, text: str) -> LinkNow:
    if now.best_width is None:
        raise BadChange(f"the topology does not tell the width of {now.link.id}", mend="set its bandwidth instead")
    least = 0 if now.link.kind is LinkKind.NVLINK else 1
    width = quantities.whole("width", text, least, now.best_width)
    if now.link.kind in _BUSES and width not in LANES:
        lanes = ", ".join(str(n) for n in LANES if n <= now.best_width)
        raise BadChange(f"width={text}: a PCI Express link has {lanes} lanes")
    return replace(now, width=width)


def _speed(now: LinkNow, text: str) -> LinkNow:
    if now.best_generation is None:
        raise BadChange(f"the topology does not tell the speed of {now.link.id}", mend="set its bandwidth instead")
    speeds = {f"{speed_of(n):g}": n for n in range(1, now.best_generation + 1)}
    words = {f"{speed_of(n):.1f}": n for n in speeds.values()} | {f"gen{n}": n for n in speeds.values()} | speeds
    generation = words.get(text.lower().removesuffix("gt/s").strip())
    if generation is None:
        raise BadChange(f"speed={text}: this link runs at {', '.join(speeds)} GT/s", mend="for example speed=8GT/s")
    return replace(now, generation=generation)


def _bandwidth(now: LinkNow, text: str) -> LinkNow:
    return replace(now, bandwidth_share=quantities.share("bandwidth", text, now.link.bandwidth_bytes_per_second))


def _state(now: LinkNow, text: str) -> LinkNow:
    match text.strip().lower():
        case "down":
            return replace(now, down=True)
        case "up":
            fresh = _at_first(now.link)
            return replace(
                fresh, width=fresh.best_width, generation=fresh.best_generation, down=False, errors=now.errors
            )
        case _:
            raise BadChange(f"state={text}: a link is set up, as it should be, or down")


_CHANGES: Mapping[str, Callable[[LinkNow, str], LinkNow]] = {
    "state": _state,
    "width": _width,
    "speed": _speed,
    "bandwidth": _bandwidth,
    "latency": lambda now, text: replace(now, added_latency_seconds=quantities.seconds("latency", text)),
    "loss": lambda now, text: replace(now, loss=quantities.chance("loss", text)),
}
