"""Devices of the emulated machine as a person sets them: GPUs' heat, clocks, use and errors, network cards' ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chaos.errors import BadChange
from chaos.machine import quantities
from chaos.machine.kernel_log import KernelLog
from chaos.machine.link_state import FELL_OFF_THE_BUS
from chaos.machine.memory import GPU_IDLE, MachineMemory
from chaos.machine.plan import GpuPlan, MachinePlan
from observatory.documents import did_you_mean
from observatory.model.device import Device, DeviceKind

_MOST_ERRORS = 10**9
_THROTTLES = {"none": 0, "power": 0x4, "hw": 0x8, "sw_thermal": 0x20, "thermal": 0x40, "power_brake": 0x80}
"""nvmlClocksEventReason*. A hardware reason sets the bit of hardware slowdown too, as drivers do."""
_HARDWARE_REASONS, _HARDWARE_SLOWDOWN = 0xC0, 0x8

Set = Callable[[GpuPlan, Any, str], None]


@dataclass(frozen=True, slots=True)
class PortNow:
    """The ports of a network card, all alike. `loss`: part of its packets that is lost; `errors` ever."""

    down: bool = False
    loss: float = 0.0
    errors: int = 0


@dataclass(slots=True)
class MachineDevices:
    """The devices of one machine. Changes come from one thread at a time."""

    plan: MachinePlan
    memory: MachineMemory
    log: KernelLog
    ports: dict[str, PortNow] = field(default_factory=dict)

    def port(self, device_id: str) -> PortNow:
        """The ports of a network card as they are now."""
        return self.ports.get(device_id, PortNow())

    def change(self, device: Device, changes: Mapping[str, str]) -> Mapping[str, Any]:
        """Make the device so; nothing changes where one of the changes cannot be. What it is now, for people.

        Raises:
            BadChange: no device of that kind has such a property or such a value.
        """
        if device.kind is DeviceKind.NIC:
            return self._change_card(device, changes)
        number = next((n for n, gpu in enumerate(self.plan.gpus) if gpu.device.id == device.id), None)
        if number is None:
            raise BadChange(
                f"nothing of {device.id} ({device.kind}) can be set", mend="set a link, a GPU or a network card"
            )
        return self._change_gpu(number, changes)

    def _change_gpu(self, number: int, changes: Mapping[str, str]) -> Mapping[str, Any]:
        gpu = self.plan.gpus[number]
        _check_keys("a GPU", changes, (*_GPU_KEYS, "xid", "lost"))
        trial = self.memory.state(number)
        xid = quantities.whole("xid", changes["xid"], 1, 9999) if "xid" in changes else None
        lost = quantities.yes("lost", changes["lost"]) if "lost" in changes else None
        for key, text in changes.items():
            if key in _GPU_KEYS:
                _GPU_KEYS[key](gpu, trial, text)
        was_lost = bool(trial["lost"])
        with self.memory.change(number) as state:
            for key, text in changes.items():
                if key in _GPU_KEYS:
                    _GPU_KEYS[key](gpu, state, text)
            if lost is not None:
                state["lost"] = lost
        if lost and not was_lost:
            words = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
            self.log.xid(gpu.bus_id, FELL_OFF_THE_BUS, words)
            self.memory.tell_xid(number, FELL_OFF_THE_BUS)
        if xid is not None:
            self.log.xid(gpu.bus_id, xid, "pid='<unknown>', name=<unknown>")
            self.memory.tell_xid(number, xid)
        return dict(changes)

    def _change_card(self, device: Device, changes: Mapping[str, str]) -> Mapping[str, Any]:
        _check_keys("a network card", changes, ("state", "loss", "errors"))
        before = after = self.port(device.id)
        for key, text in changes.items():
            if key == "loss":
                after = replace(after, loss=quantities.chance(key, text))
            elif key == "errors":
                after = replace(after, errors=after.errors + quantities.whole(key, text, 1, _MOST_ERRORS))
            elif text not in ("up", "down"):
                raise BadChange(f"state={text}: a port is up or down")
            else:
                after = replace(after, down=text == "down")
        self.ports[device.id] = after
        if after.down != before.down:
            for name in device.os_names or (device.id.rpartition("/")[2],):
                self.log.interface(name, "down" if after.down else "up")
        return {"state": "down" if after.down else "up", "loss": after.loss, "errors": after.errors}


def _check_keys(what: str, changes: Mapping[str, str], known: tuple[str, ...]) -> None:
    for key in changes:
        if key not in known:
            raise BadChange(f"{what} has no {key!r} that could be set", mend=did_you_mean(key, known))


def _celsius(name: str) -> Set:
    def change(_: GpuPlan, state: Any, text: str) -> None:
        state[name] = quantities.whole(name.partition("_celsius")[0], text, 0, 150)

    return change


def _percent(name: str) -> Set:
    def change(_: GpuPlan, state: Any, text: str) -> None:
        state[name] = quantities.percent(name, text)
        if name == "utilisation_percent":
            idle = int(state["clocks_event_reasons"]) & ~GPU_IDLE
            state["clocks_event_reasons"] = idle if state[name] else idle | GPU_IDLE

    return change


def _add(name: str) -> Set:
    def change(_: GpuPlan, state: Any, text: str) -> None:
        state[name] += quantities.whole(name, text, 1, _MOST_ERRORS)

    return change


def _flag(name: str) -> Set:
    def change(_: GpuPlan, state: Any, text: str) -> None:
        state[name] = quantities.yes(name, text)

    return change


def _power(gpu: GpuPlan, state: Any, text: str) -> None:
    most = gpu.chip.power_limit_milliwatts // 1000
    state["power_milliwatts"] = 1000 * quantities.whole("power", text.strip().removesuffix("W"), 0, most)


def _clock(gpu: GpuPlan, state: Any, text: str) -> None:
    """Graphics and SM, which run together."""
    mhz = quantities.whole("clock", text.strip().removesuffix("MHz"), 0, gpu.chip.clocks_mhz[0])
    state["clocks_mhz"][:2] = mhz


def _memory_used(gpu: GpuPlan, state: Any, text: str) -> None:
    most = gpu.chip.memory_bytes - min(gpu.chip.memory_reserved_bytes, gpu.chip.memory_bytes)
    state["memory_used_bytes"] = quantities.size("memory", text, most)


def _throttle(_: GpuPlan, state: Any, text: str) -> None:
    bit = _THROTTLES.get(text)
    if bit is None:
        raise BadChange(f"throttle={text}: that is no reason", mend=did_you_mean(text, _THROTTLES))
    bit |= _HARDWARE_SLOWDOWN if bit & _HARDWARE_REASONS else 0
    state["clocks_event_reasons"] = bit or (0 if state["utilisation_percent"] else GPU_IDLE)


_GPU_KEYS: Mapping[str, Set] = {
    "temperature": _celsius("temperature_celsius"),
    "memory_temperature": _celsius("memory_temperature_celsius"),
    "power": _power,
    "clock": _clock,
    "utilization": _percent("utilisation_percent"),
    "encoder": _percent("encoder_percent"),
    "decoder": _percent("decoder_percent"),
    "memory": _memory_used,
    "throttle": _throttle,
    "ecc_corrected": _add("ecc_corrected"),
    "ecc_uncorrected": _add("ecc_uncorrected"),
    "remapped_corrected": _add("remapped_correctable"),
    "remapped_uncorrected": _add("remapped_uncorrectable"),
    "remapping_pending": _flag("remapping_pending"),
    "remapping_failed": _flag("remapping_failed"),
}
