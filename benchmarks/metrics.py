"""`script/bench metrics`: what ten thousand series of hardware cost, scraped by Prometheus and sent over OTLP.

Peer: prometheus-client, which the same values are set in. All figures are CPU time: of the thread for rendering, of the
platform's and the web process's code together for a whole scrape (one process here; the one that asks is another).
What the programs of the receiver `ebpf-links` cost is what the kernel counts of them while datagrams and a TCP stream
go over the loopback interface; the counting itself is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_exposition

from benchmarks.report import measured_now, read_parts, spread, stamps, write_parts, write_table
from observatory.app.control import ControlServer
from observatory.app.packed import pack
from observatory.app.web.app import build_app
from observatory.app.web.backend import Backend
from observatory.app.web.serve import make_server
from observatory.export.otlp_metrics import MetricsEncoder
from observatory.metrics.book import MetricsBook
from observatory.metrics.hardware import LatestValues
from observatory.model.observation import Address, AddressKind, Observation

SERIES = 10_000
PER_DEVICE: tuple[tuple[str, dict[str, str], Callable[[int], float]], ...] = (
    ("link.width", {}, lambda n: 16),
    ("hw.temperature", {"hw.sensor_location": "gpu"}, lambda n: 30 + n % 50),
    ("hw.power", {}, lambda n: round(70 + (n * 7.3) % 600, 3)),
    ("link.io", {"network.io.direction": "transmit"}, lambda n: n * 123_456_789),
)

ASKING = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
for _ in sys.stdin:  # a line is a scrape
    connection.request("GET", "/metrics", headers={
        "Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    print(answer.status, len(answer.read()), flush=True)
"""


def observations(worst: bool = False) -> list[Observation]:
    """Four values of each of 2,500 devices; `worst`: all with seventeen digits, which take longest to write."""
    now = time.monotonic_ns()
    found = []
    for number in range(SERIES // len(PER_DEVICE)):
        device = Address(f"n{number // 64}", AddressKind.PCI, f"0000:{number % 64:02x}:00.0")
        for metric, attributes, value in PER_DEVICE:
            seen = (number * 7.3) % 97 + 0.123456789 if worst else value(number)
            found.append(Observation(device, metric, seen, now, "nvml", attributes))
    return found


def filled(worst: bool = False) -> LatestValues:
    latest = LatestValues(stale_seconds=3600)
    latest.see(observations(worst))
    return latest


def peer() -> CollectorRegistry:
    """The same series in prometheus-client."""
    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    for one in observations():
        labels = {"node": one.subject.node, "pci": one.subject.key, "source": one.source}
        labels |= {name.replace(".", "_"): word for name, word in one.attributes.items()}
        name = one.metric.replace(".", "_")
        if name not in gauges:
            gauges[name] = Gauge(name, name, list(labels), registry=registry)
        gauges[name].labels(**labels).set(one.value or 0)
    return registry


def cpu_ms(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return (time.thread_time() - began) * 1e3


def rendering(rounds: int) -> dict[str, Any]:
    usual, worst, registry = filled(), filled(worst=True), peer()
    seen = observations()
    works: dict[str, Callable[[], object]] = {
        "ours_classic_ms": lambda: usual.render(False).encode(),
        "ours_openmetrics_ms": lambda: usual.render(True).encode(),
        "ours_worst_values_ms": lambda: worst.render(True).encode(),
        "peer_classic_ms": lambda: generate_latest(registry),
        "peer_openmetrics_ms": lambda: openmetrics_exposition.generate_latest(registry),  # type: ignore[no-untyped-call]
        "taking_all_values_ms": lambda: usual.see(seen),
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(cpu_ms(work))
    text = usual.render(True).encode()
    return {
        **{name: spread(values) for name, values in found.items()},
        "bytes": len(text),
        "packed_bytes": len(gzip.compress(text, 1)),
    }


def scrape(rounds: int) -> dict[str, Any]:
    """Whole scrapes: from the platform's values through the control socket and the web application to the socket."""
    book, latest = MetricsBook(), filled()
    book.add(latest.render)

    def metrics(arguments: dict[str, Any], _: object) -> dict[str, str]:
        text, kind = book.render(bool(arguments["openmetrics"]))
        return {"gzip": pack(text), "content_type": kind}

    with tempfile.TemporaryDirectory(prefix="observatory-bench-") as folder:
        control = ControlServer(Path(folder), {"metrics": metrics})
        backend = Backend(control.path, Path(folder))
        server = make_server(build_app(backend, with_pages=False))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
            thread.start()
            try:
                return _ask(listener.getsockname()[1], rounds)
            finally:
                server.stop()
                thread.join()
                backend.close()
                control.close()


def _ask(port: int, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-c", ASKING, str(port)]
    found = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as asking:
        assert asking.stdin is not None
        assert asking.stdout is not None
        for number in range(rounds + 3):
            began = time.process_time()
            asking.stdin.write("\n")
            status, size = asking.stdout.readline().split()
            if status != "200":
                raise SystemExit(f"/metrics answered {status}")
            if number >= 3:  # the first ones import and connect
                found.append((time.process_time() - began) * 1e3)
        asking.stdin.close()
    return {"scrape_ms": spread(found), "sent_bytes": int(size)}


def otlp(rounds: int) -> dict[str, Any]:
    latest = filled()
    encoder = MetricsEncoder("bench", lambda: 0)
    found, sizes = [], 0
    for _ in range(rounds):
        body = b""

        def encode() -> None:
            nonlocal body
            body = encode_metrics(encoder.encode(latest.series())).SerializeToString()

        found.append(cpu_ms(encode))
        sizes = len(body)
    return {"encoding_ms": spread(found), "bytes": sizes}


def ebpf(rounds: int) -> dict[str, Any]:
    """Nanoseconds a run of each program, and a poll; empty where the kernel does not take them."""
    from observatory.receivers.ebpf_layout import INTERFACE, MAX_INTERFACES, TRAFFIC
    from observatory.receivers.ebpf_library import BpfObject, counted_costs
    from observatory.receivers.ebpf_links import PARTS, EbpfLinks, object_path
    from observatory.receivers.errors import ReceiverUnavailable
    from observatory.receivers.protocol import ReceiverContext

    try:
        loaded = BpfObject(object_path(), frozenset(name for names in PARTS.values() for name in names))
    except ReceiverUnavailable as error:
        return {"unavailable": str(error)}
    programs: dict[str, list[float]] = {}
    try:
        loaded.hash_map("traffic", INTERFACE, TRAFFIC, MAX_INTERFACES, per_cpu=True)
        for _ in range(rounds):
            before = loaded.costs()
            with counted_costs():
                _traffic()
                after = loaded.costs()
            for name, cost in after.items():
                runs = cost.runs - before[name].runs
                if runs:
                    programs.setdefault(name, []).append((cost.nanoseconds - before[name].nanoseconds) / runs)
    finally:
        loaded.close()
    receiver = EbpfLinks()
    asyncio.run(receiver.open(ReceiverContext("n0")))
    _traffic()
    polls = [cpu_ms(lambda: asyncio.run(receiver.poll())) for _ in range(rounds)]
    asyncio.run(receiver.close())
    return {"programs_ns": {name: spread(values) for name, values in programs.items()}, "poll_ms": spread(polls)}


def _traffic() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind(("127.0.0.1", 0))
        for _ in range(20_000):
            one.sendto(b"x", one.getsockname())
            one.recv(16)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as there:
        here, _ = listener.accept()
        with here:
            for _ in range(5000):
                there.sendall(b"x")
                here.recv(1)
                here.sendall(b"y")
                there.recv(1)


PARTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "rendering": rendering,
    "scrape": scrape,
    "otlp": otlp,
    "ebpf": ebpf,
}


def figures(parts: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def add(words: str, part: str, value: dict[str, float] | None, unit: str = "ms", goal: float | None = None) -> None:
        if value is not None:
            median = value["median"]
            row = {"figure": words, "part": part, "unit": unit, **value}
            found.append(row | ({} if goal is None else {"goal": goal, "reached": median <= goal}))

    rendered = parts["rendering"].results if "rendering" in parts else {}
    for key, words, goal in (
        ("ours_classic_ms", "10,000 series rendered, classic format", 10),
        ("ours_openmetrics_ms", "10,000 series rendered, OpenMetrics", 10),
        ("ours_worst_values_ms", "the same where every value has 17 digits", None),
        ("peer_classic_ms", "prometheus-client, classic format", None),
        ("peer_openmetrics_ms", "prometheus-client, OpenMetrics", None),
        ("taking_all_values_ms", "taking over 10,000 new values of receivers", None),
    ):
        add(words, "rendering", rendered.get(key), goal=goal)
    if "scrape" in parts:
        words = "a whole scrape of 10,000 series: platform, control socket, web process, gzip"
        add(words, "scrape", parts["scrape"].results["scrape_ms"], goal=10)
    if "otlp" in parts:
        add("10,000 points as an OTLP request", "otlp", parts["otlp"].results["encoding_ms"])
    if "ebpf" in parts and "programs_ns" in parts["ebpf"].results:
        for name, value in parts["ebpf"].results["programs_ns"].items():
            add(f"eBPF: one run of `{name}`", "ebpf", value, unit="ns")
        add("eBPF: one poll of the receiver", "ebpf", parts["ebpf"].results["poll_ms"])
    return found


def table(parts: dict[str, Any]) -> str:
    rows = ["| figure | CPU time | goal | reached |", "|---|---|---|---|"]
    for one in figures(parts):
        digits = 0 if one["unit"] == "ns" else 1
        measured = f"{one['median']:.{digits}f} {one['unit']} ({one['min']:.{digits}f}-{one['max']:.{digits}f})"
        goal = f"<= {one['goal']:g} {one['unit']}" if "goal" in one else ""
        rows.append(f"| {one['figure']} | {measured} | {goal} | {_reached(one)} |")
    return "\n".join([*rows, "", *stamps(parts)])


def _reached(one: dict[str, Any]) -> str:
    if "reached" not in one:
        return ""
    return "yes" if one["reached"] else "**no**"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/bench metrics", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part anew, leave the others")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--quick", action="store_true", help="three rounds, and nothing is written")
    chosen = parser.parse_args(arguments)
    parts = {} if chosen.quick else read_parts("metrics")
    for name in chosen.only or PARTS:
        began = time.perf_counter()
        results = PARTS[name](3 if chosen.quick else chosen.rounds)
        parts[name] = measured_now(time.perf_counter() - began, results)
    print(table(parts))
    if not chosen.quick:
        write_parts("metrics", parts, figures(parts))
        write_table("metrics", table(parts))
    return 0
