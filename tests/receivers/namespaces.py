"""Two network namespaces that are joined by a pair of interfaces, and a way to be in one of them for a moment."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from observatory.receivers.ebpf_library import library

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
XDP, BPF_XDP = 6, 37


@dataclass(frozen=True)
class Namespace:
    """One side. `interface` has `address`; nothing but what a test sends crosses it (and ARP)."""

    name: str
    interface: str
    address: str

    @property
    def file(self) -> str:
        return f"/run/netns/{self.name}"

    def inside(self, what: Callable[[], T]) -> T:
        """Do it in this namespace, in a thread of its own; sockets that it makes stay there."""

        def enter() -> T:
            with Path(self.file).open() as opened:
                if ctypes.CDLL(None, use_errno=True).setns(opened.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            return what()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(enter).result()

    def statistics(self) -> dict[str, int]:
        """What the interface counts itself, and the namespace's TCP segments that were sent again."""
        told = json.loads(ip("-n", self.name, "-s", "-j", "link", "show", self.interface))[0]["stats64"]
        found = {f"{way}_{what}": told[way][what] for way in ("rx", "tx") for what in ("bytes", "packets")}
        snmp = self.inside(lambda: Path("/proc/thread-self/net/snmp").read_text())
        names, values = (line.split() for line in snmp.splitlines() if line.startswith("Tcp:"))
        return {**found, "retransmitted": int(values[names.index("RetransSegs")])}

    @contextmanager
    def losing(self, share: float) -> Iterator[None]:
        """Lose that share of the packets that arrive."""
        threshold = int(share * 2**32)
        random = struct.pack("<BBhi", 0x85, 0, 0, 7)  # call bpf_get_prandom_u32
        below = struct.pack("<BBhi", 0xA6, 0, 2, threshold)  # if w0 < threshold skip two
        answers = [struct.pack("<BBhi", 0xB7, 0, 0, action) + struct.pack("<BBhi", 0x95, 0, 0, 0) for action in (2, 1)]
        code = ctypes.create_string_buffer(random + below + answers[0] + answers[1], 48)
        program = library().bpf_prog_load(XDP, b"lose", b"GPL", code, 6, None)
        assert program >= 0, os.strerror(-program)

        def attach() -> int:
            number = json.loads(ip("-n", self.name, "-j", "link", "show", self.interface))[0]["ifindex"]
            return int(_link_create()(program, number, BPF_XDP, None))

        link = self.inside(attach)
        try:
            assert link >= 0, os.strerror(-link)
            yield
        finally:
            os.close(program)
            if link >= 0:
                os.close(link)


def _link_create() -> Callable[..., int]:
    found = library().bpf_link_create
    found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    return found


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


@contextmanager
def joined() -> Iterator[tuple[Namespace, Namespace]]:
    """Two namespaces of this process, gone afterwards."""
    sides = tuple(
        Namespace(f"observatory-{os.getpid()}-{which}", f"veth-{which}", f"192.0.2.{number}")
        for number, which in enumerate("ab", start=1)
    )
    near, far = sides
    made: list[str] = []
    try:
        for side in sides:
            ip("netns", "add", side.name)
            made.append(side.name)
            setting = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
            side.inside(lambda setting=setting: setting.exists() and setting.write_text("1"))  # type: ignore[misc]
        ip("link", "add", near.interface, "netns", near.name, "type", "veth", "peer", far.interface, "netns", far.name)
        for side in sides:
            ip("-n", side.name, "address", "add", f"{side.address}/24", "dev", side.interface)
            ip("-n", side.name, "link", "set", side.interface, "up")
        yield near, far
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], check=False)
