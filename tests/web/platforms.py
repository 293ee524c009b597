"""A platform as the web process sees it: a real control socket, with answers made up by hand."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from observatory.app.control import CallerGone, ControlServer, Handler
from observatory.app.errors import NameTaken, NoSuchPipeline
from observatory.app.packed import pack
from observatory.app.web.examples import PIPELINE, SNAPSHOT
from observatory.model.device import Device, DeviceKind
from observatory.model.link import Link, LinkKind
from observatory.model.topology import Node, Topology
from scheduler.errors import BadSpec


class _Server(ControlServer):
    """One whose connections break when its process would be gone."""

    gone = False

    def _answer(self, line: bytes, caller_gone: CallerGone) -> dict[str, Any]:
        if self.gone:
            raise ConnectionResetError
        return super()._answer(line, caller_gone)


class FakePlatform:
    """Answers on `<state>/run/<pid>.sock`. `asked` counts commands; `extra` makes the snapshot larger (bytes)."""

    def __init__(self, state: Path, *, extra: int = 0, topology: Topology | None = None) -> None:
        self.state = state
        self.asked: dict[str, int] = {}
        self.arguments: dict[str, Any] = {}
        self.fails: Callable[[], None] = lambda: None
        self.document = copy.deepcopy(SNAPSHOT)
        self.document["platform"]["warnings"] = ["w" * extra] if extra else []
        self.topology = topology or pair()
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self.start()

    @property
    def path(self) -> Path:
        assert self._server is not None
        return self._server.path

    def start(self) -> None:
        handlers = {
            "snapshot": self._snapshot,
            "metrics": self._metrics,
            "submit": self._submit,
            "remove": self._remove,
            "topology": lambda _: self.topology.model_dump(mode="json"),
        }
        self._server = _Server(self.state, {n: self._counted(n, h) for n, h in handlers.items()})

    def stop(self) -> None:
        if self._server is not None:
            self._server.gone = True
            self._server.close()
            self._server = None

    def _counted(self, name: str, handler: Callable[[dict[str, Any]], Any]) -> Handler:
        def handle(arguments: dict[str, Any], _: CallerGone) -> Any:
            with self._lock:
                self.asked[name] = self.asked.get(name, 0) + 1
                self.arguments[name] = arguments
            self.fails()
            return handler(arguments)

        return handle

    def _snapshot(self, _: dict[str, Any]) -> Any:
        with self._lock:
            self.document["unix_seconds"] += 1.0
            return copy.deepcopy(self.document)

    def _metrics(self, arguments: dict[str, Any]) -> Any:
        if arguments["openmetrics"]:
            return {"gzip": pack(b"up 1.0\n# EOF\n"), "content_type": "application/openmetrics-text; version=1.0.0"}
        return {"gzip": pack(b"up 1.0\n"), "content_type": "text/plain; version=0.0.4; charset=utf-8"}

    def _submit(self, arguments: dict[str, Any]) -> Any:
        if "taken" in arguments["spec"]:
            raise NameTaken("pipeline taken is running", mend="remove it first")
        if "wrong" in arguments["spec"]:
            raise BadSpec("there is no such key", file=arguments.get("file"), line=7, mend="did you mean width?")
        return PIPELINE | {"name": "fresh", "state": "starting"}

    def _remove(self, arguments: dict[str, Any]) -> Any:
        if arguments["name"] != "abr-ladder":
            raise NoSuchPipeline(f"there is no pipeline {arguments['name']!r}")
        return PIPELINE | {"state": "draining"}


def pair(bandwidth_bytes_per_second: float = 50e9) -> Topology:
    """A processor and a GPU with a link of 1 us between them."""
    return cluster(1, 1, bandwidth_bytes_per_second)


def cluster(nodes: int, gpus: int, bandwidth_bytes_per_second: float = 50e9) -> Topology:
    """Nodes with one processor and some GPUs each; the processors are joined in a row by links of 2 us, 10 GB/s."""
    devices, links = [], []
    for n in range(nodes):
        devices += [Device(id=f"n{n}/gpu{g}", kind=DeviceKind.GPU, node=f"n{n}") for g in range(gpus)]
        devices.append(Device(id=f"n{n}/cpu0", kind=DeviceKind.CPU, node=f"n{n}"))
        links += [
            Link(
                a=f"n{n}/cpu0",
                b=f"n{n}/gpu{g}",
                kind=LinkKind.PCIE,
                bandwidth_bytes_per_second=bandwidth_bytes_per_second,
                latency_seconds=1e-6,
            )
            for g in range(gpus)
        ]
        if n:
            links.append(
                Link(
                    a=f"n{n - 1}/cpu0",
                    b=f"n{n}/cpu0",
                    kind=LinkKind.RDMA,
                    bandwidth_bytes_per_second=10e9,
                    latency_seconds=2e-6,
                )
            )
    return Topology(nodes=tuple(Node(id=f"n{n}") for n in range(nodes)), devices=tuple(devices), links=tuple(links))
