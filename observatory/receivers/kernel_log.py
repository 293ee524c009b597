"""What the kernel's log says of hardware: errors of GPUs, PCI Express, memory, processors, RDMA cards, CXL and links.

`recognise` turns one message into an event, `recognise_all` those of a whole log. Kinds, with what `code` is:

    xid              NVIDIA GPU error          its number: 79; `nvlink`, `mig` where the line names them
    sxid             NVSwitch error            its number: 20034; `severity`, `nvlink`
    gpu_lost         "fallen off the bus"      -
    gpu_driver       a driver gave a GPU up    init_failed, reset, peermem
    gpu_ras          AMD GPU memory and fabric ce or ue; `count`, `block`, `report`: new or total
    nvlink           NVIDIA driver's words     -
    aer              PCI Express error         corrected, nonfatal, fatal, recovery_failed; `layer`, `report`
    dpc              port cut off after error  -
    pcie_link        a slot's link             up, down, retrain_failed, limited; `limited_by`
    edac             memory controller         ce or ue; `count`, `label`
    mce              processor's machine check corrected or uncorrected, None where not told; `cpu`, `bank`
    firmware         error told by firmware    corrected, recoverable, fatal, info
    memory_failure   a page was given up       recovered, failed, ...
    thermal          held back for its heat    `cpu`
    rdma             RDMA card or its driver   health, fatal, cable, power, temperature, command, ...
    cxl              CXL memory                -
    interface        network link              up, down

An `aer` event with `report` = `root_port` announces one that the device itself reports next, mostly: whoever counts
errors counts `report` = `device`. Where a process and not the kernel wrote the line, the attribute `facility` says so.

Formats: NVIDIA, "Xid Errors" and "Fabric Manager User Guide" (appendix D); Linux 6.12: drivers/pci/pcie/aer.c, dpc.c,
drivers/pci/hotplug/pciehp_ctrl.c, drivers/pci/pci.c (pcie_print_link_status), drivers/edac/edac_mc.c and edac_device.c,
arch/x86/kernel/cpu/mce/core.c, drivers/firmware/efi/cper.c, mm/memory-failure.c, health.c, port.c and events.c of
drivers/net/ethernet/mellanox/mlx5/core, drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c, drivers/cxl/pci.c. Newer kernels
write `Correctable` and `Uncorrectable` for what were `Corrected` and `Uncorrected`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from observatory.model.observation import HardwareEvent
from observatory.receivers.kernel_log_lines import KernelMessage, parse_line
from observatory.receivers.kernel_log_rules import MARK, RULES, Found, Rule, address_of, pci_address

__all__ = ["KernelMessage", "Recogniser", "parse_line", "recognise", "recognise_all"]

_LONGEST_TEXT = 1000
_NAMES_A_GPU = re.compile(r"NVRM: The NVIDIA GPU ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")
_LINES_OF_ONE = 4  # the driver says in four lines that a GPU does not answer, and which one in the first


def recognise(
    message: KernelMessage, node: str, *, source: str = "kmsg", read_at_ns: int | None = None
) -> HardwareEvent | None:
    """The event that a message tells of, or None: nearly all tell of none, and cost one search.

    The event's time is the kernel's, else `read_at_ns`, else 0.
    """
    text = message.text
    if MARK.search(text) is None:
        return None
    for rule in RULES:
        found = _apply(rule, text)
        if found is not None:
            return _event(message, node, source, read_at_ns, found)
    return None


class Recogniser:
    """`recognise` for messages in their order: some say in an earlier line which device they are about."""

    def __init__(self, node: str, source: str = "kmsg") -> None:
        self.node = node
        self.source = source
        self._named: tuple[str, int] | None = None
        self._at = 0

    def feed(self, message: KernelMessage, read_at_ns: int | None = None) -> HardwareEvent | None:
        """The event that the next message tells of, or None."""
        self._at += 1
        if "NVRM" not in message.text:
            return recognise(message, self.node, source=self.source, read_at_ns=read_at_ns)
        named = _NAMES_A_GPU.match(message.text)
        if named is not None:
            self._named = (named[1], self._at)
        event = recognise(message, self.node, source=self.source, read_at_ns=read_at_ns)
        if event is None or event.kind != "gpu_lost" or event.subject.key or self._named is None:
            return event
        bus_id, at = self._named
        if self._at - at >= _LINES_OF_ONE:
            return event
        subject = address_of(self.node, pci_address(bus_id))
        return HardwareEvent(subject, event.kind, event.text, event.at_ns, event.source, event.code, event.attributes)


def recognise_all(lines: Iterable[str], node: str, *, source: str = "kmsg") -> Iterator[HardwareEvent]:
    """The events of a whole log, in its order: lines of a file of dmesg, journald, pstore or /dev/kmsg."""
    recogniser = Recogniser(node, source)
    for line in lines:
        message = parse_line(line)
        event = None if message is None else recogniser.feed(message)
        if event is not None:
            yield event


def _apply(rule: Rule, text: str) -> Found | None:
    if rule.marker not in text:
        return None
    match = rule.pattern.search(text)
    return None if match is None else rule.read(match)


def _event(message: KernelMessage, node: str, source: str, read_at_ns: int | None, found: Found) -> HardwareEvent:
    attributes = {name: value for name, value in found.attributes.items() if value is not None}
    if message.facility not in (None, "kern"):
        attributes["facility"] = str(message.facility)
    at_ns = message.monotonic_ns if message.monotonic_ns is not None else read_at_ns
    return HardwareEvent(
        subject=address_of(node, found.address),
        kind=found.kind,
        text=message.text[:_LONGEST_TEXT],
        at_ns=at_ns or 0,
        source=source,
        code=found.code,
        attributes=attributes,
    )
