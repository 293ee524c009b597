"""`script/bench receivers`: from a change at the source to the observation delivered, and what a poll costs.

The sources are a made-up machine in a folder (benchmarks/receiver_trees.py): a file is replaced at a random moment, and
the time taken when the value comes out of the runner. All receivers run at once, polled every 250 ms. The kernel's log
is a pipe there, and /dev/kmsg too where it may be written. The exporter is a web server of Python's in a process of its
own. The cost is the processor time of the receiver's thread per poll, its share of a processor at its own period, and
what is read for it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.receiver_trees import card, make_machine, pressure, replace
from benchmarks.report import spread, write_results, write_table
from observatory.model.observation import HardwareEvent, Seen
from observatory.receivers.endpoint import Endpoint
from observatory.receivers.exporter_names import WANTED
from observatory.receivers.exposition_text import samples
from observatory.receivers.infiniband import Infiniband
from observatory.receivers.interfaces import Interfaces
from observatory.receivers.kernel_log import parse_line, recognise
from observatory.receivers.kmsg import Kmsg
from observatory.receivers.numa import Numa
from observatory.receivers.pressure import Pressure
from observatory.receivers.runner import Factory, Runner, Settings
from observatory.receivers.sysfs_pcie import SysfsPcie

PERIOD_SECONDS = 0.25
GOAL_POLLED_SECONDS = 2 * PERIOD_SECONDS + 0.1
GOAL_EVENT_SECONDS = 0.05
COST_POLLS = 60
LIMIT_SECONDS = 30.0
MARK = "observatory benchmark: NVRM: Xid (PCI:ffff:ff:1f.7): "

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = open(sys.argv[1], "rb").read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@dataclass
class Source:
    """What is changed: `change` makes it `number`; `is_new` says whether a thing seen shows that."""

    receiver: str
    change: Callable[[int], None]
    is_new: Callable[[Seen, int], bool]
    goal_seconds: float = GOAL_POLLED_SECONDS
    number: int = 0
    seen: threading.Event = field(default_factory=threading.Event)
    seen_at: float = 0.0
    seconds: list[float] = field(default_factory=list)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/bench receivers", description=__doc__)
    parser.add_argument("--changes", type=int, default=200, help="of each source (default %(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_machine(root)
        with exporter(root) as url:
            results = {
                "changes": options.changes,
                "period_seconds": PERIOD_SECONDS,
                "delays": delays(root, url, options.changes),
                "cost": cost(root, url),
                "parsing": parsing(root),
            }
    print(write_results("receivers", results))
    write_table("receivers", table(results))
    return 0


@contextmanager
def exporter(root: Path) -> Iterator[str]:
    metrics = root / "metrics"
    metrics.write_text(exposition(0))
    command = [sys.executable, "-c", SERVER, str(metrics)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/metrics"
    finally:
        process.kill()
        process.wait()


def exposition(value: int) -> str:
    """As node_exporter's of a machine of that size: 3,000 series, a tenth of them known."""
    lines = [f'node_network_receive_bytes_total{{device="eth{n}"}} {value}' for n in range(300)]
    lines += [f'node_cpu_seconds_total{{cpu="{n}",mode="idle"}} 10870.69' for n in range(2700)]
    return "\n".join(lines) + "\n"


# -- from the change to the observation --------------------------------------------------------------------------------


def delays(root: Path, url: str, changes: int) -> dict[str, Any]:
    sources = all_sources(root)
    by_receiver: dict[str, list[Source]] = {}
    for source in sources.values():
        by_receiver.setdefault(source.receiver, []).append(source)

    def deliver(name: str, batch: Sequence[Seen]) -> None:
        now = time.monotonic()
        for source in by_receiver.get(name, ()):
            if not source.seen.is_set() and any(source.is_new(one, source.number) for one in batch):
                source.seen_at = now
                source.seen.set()

    settings = {name: Settings(period_seconds=PERIOD_SECONDS) for name in RECEIVERS}
    settings["endpoint"] = Settings(period_seconds=PERIOD_SECONDS, options={"url": url})
    runners = [Runner(RECEIVERS, "n0", deliver, root=root, settings=settings)]
    if "kmsg (/dev/kmsg)" in sources:
        runners.append(Runner({"kmsg": Kmsg}, "n0", lambda _, batch: deliver("kmsg (/dev/kmsg)", batch)))
    for runner in runners:
        runner.start()
    time.sleep(1.0)
    threads = [threading.Thread(target=change_again_and_again, args=(s, changes)) for s in sources.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for runner in runners:
        runner.stop()
    return {name: quantiles(source) for name, source in sources.items()}


RECEIVERS: Mapping[str, Factory] = {
    "sysfs-pcie": SysfsPcie,
    "infiniband": Infiniband,
    "interfaces": Interfaces,
    "numa": Numa,
    "pressure": Pressure,
    "kmsg": Kmsg,
    "endpoint": Endpoint,
}


def all_sources(root: Path) -> dict[str, Source]:
    width = root / f"sys/bus/pci/devices/{card(42)}/current_link_width"
    errors = root / "sys/class/infiniband/mlx5_3/ports/1/hw_counters/packet_seq_err"
    received = root / "sys/class/net/eth5/statistics/rx_bytes"
    pages = root / "sys/devices/system/node/node6/numastat"
    stalled = root / "proc/pressure/memory"
    pipe = os.open(root / "dev/kmsg", os.O_RDWR)
    found = {
        "sysfs-pcie": Source(
            "sysfs-pcie",
            lambda n: replace(width, str(8 << n % 2)),
            is_value("link.width", card(42), lambda n: 8 << n % 2),
        ),
        "infiniband": Source(
            "infiniband", lambda n: replace(errors, str(n)), is_value("link.errors", "mlx5_3/1", int, "packet_sequence")
        ),
        "interfaces": Source(
            "interfaces", lambda n: replace(received, str(n)), is_value("hw.network.io", "eth5", int, "receive")
        ),
        "numa": Source(
            "numa", lambda n: replace(pages, f"numa_hit {n}"), is_value("numa.allocations", "6", int, "hit")
        ),
        "pressure": Source(
            "pressure",
            lambda n: replace(stalled, pressure(n * 1_000_000)),
            is_value("node.stalled", "", int, "memory"),
        ),
        "endpoint": Source(
            "endpoint",
            lambda n: replace(root / "metrics", exposition(n).rstrip("\n")),
            is_value("hw.network.io", "eth7", int, "receive"),
        ),
        "kmsg (a pipe)": Source(
            "kmsg",
            lambda n: say(pipe, f"4,{n},{time.monotonic_ns() // 1000},-;{MARK}{n}, x"),
            is_xid,
            GOAL_EVENT_SECONDS,
        ),
    }
    try:
        device = os.open("/dev/kmsg", os.O_WRONLY)
    except OSError:
        return found
    found["kmsg (/dev/kmsg)"] = Source(
        "kmsg (/dev/kmsg)", lambda n: say(device, f"<4>{MARK}{n}, x"), is_xid, GOAL_EVENT_SECONDS
    )
    return found


def say(descriptor: int, line: str) -> None:
    os.write(descriptor, f"{line}\n".encode())


def is_value(
    metric: str, key: str, value: Callable[[int], float], attribute: str | None = None
) -> Callable[[Seen, int], bool]:
    def is_new(seen: Seen, number: int) -> bool:
        return (
            not isinstance(seen, HardwareEvent)
            and seen.metric == metric
            and seen.subject.key == key
            and seen.value == value(number)
            and (attribute is None or attribute in seen.attributes.values())
        )

    return is_new


def is_xid(seen: Seen, number: int) -> bool:
    return isinstance(seen, HardwareEvent) and seen.kind == "xid" and seen.code == str(number)


def change_again_and_again(source: Source, changes: int) -> None:
    chance = random.Random(source.receiver)
    for _ in range(changes):
        time.sleep(chance.uniform(0, PERIOD_SECONDS))
        source.number += 1
        source.seen.clear()
        source.change(source.number)
        began = time.monotonic()
        if not source.seen.wait(LIMIT_SECONDS):
            raise SystemExit(f"{source.receiver}: a change was not seen within {LIMIT_SECONDS:g} s")
        source.seconds.append(max(0.0, source.seen_at - began))


def quantiles(source: Source) -> dict[str, float]:
    cuts = statistics.quantiles(source.seconds, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98], "max": max(source.seconds), "goal": source.goal_seconds}


# -- what a poll costs -------------------------------------------------------------------------------------------------


def cost(root: Path, url: str) -> dict[str, Any]:
    """Each receiver alone."""
    found = {}
    for name, make in RECEIVERS.items():
        if name == "kmsg":
            continue
        settings = {name: Settings(period_seconds=0.02, options={"url": url} if name == "endpoint" else {})}
        runner = Runner({name: make}, "n0", lambda *_: None, root=root, settings=settings)
        runner.start()
        while runner.statuses()[0].polls < COST_POLLS:
            time.sleep(0.05)
        status = runner.statuses()[0]
        runner.stop()
        period = float(make.period_seconds)  # type: ignore[attr-defined]  # polled ones have it
        each = status.cpu_seconds / status.polls
        values = status.observations / status.polls
        found[name] = {"cpu_seconds": each, "values": values, "period_seconds": period, "share": each / period}
    return found


def parsing(root: Path) -> dict[str, Any]:
    """What lines of the kernel's log and an exporter's answer cost."""
    from prometheus_client.parser import text_string_to_metric_families

    text = (root / "metrics").read_text()
    ordinary = "6,3973,227986636,-;IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready"
    telling = f"4,3974,227986637,-;{MARK}79, pid=1, GPU has fallen off the bus."

    def line(words: str) -> None:
        for _ in range(1000):
            message = parse_line(words)
            assert message is not None
            recognise(message, "n0")

    def whole(body: str) -> int:
        return sum(len(family.samples) for family in text_string_to_metric_families(body))

    return {
        "ordinary_line_seconds": spread([seconds / 1000 for seconds in timed(lambda: line(ordinary))]),
        "telling_line_seconds": spread([seconds / 1000 for seconds in timed(lambda: line(telling))]),
        "exposition_seconds": spread(timed(lambda: list(samples(text, WANTED)))),
        "exposition_by_prometheus_client_seconds": spread(timed(lambda: whole(text))),
    }


def timed(work: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(7):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return found


def table(r: dict[str, Any]) -> str:
    """The results as Markdown."""
    rows = [
        f"From a change at the source to the observation delivered, {r['changes']} changes each, polled every "
        f"{r['period_seconds'] * 1e3:.0f} ms, all at once:",
        "",
        "| source | p50 | p99 | max | goal for p99 |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {name} | {d['p50'] * 1e3:.1f} ms | **{d['p99'] * 1e3:.1f} ms** | {d['max'] * 1e3:.1f} ms "
        f"| {d['goal'] * 1e3:.0f} ms |"
        for name, d in r["delays"].items()
    ]
    rows += [
        "",
        "Processor time of a poll (100 cards, 8 RDMA ports, 8 interfaces, 8 NUMA nodes, 3,000 series of an exporter):",
        "",
        "| receiver | values | processor time | period | share of a processor |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {name} | {c['values']:.0f} | {c['cpu_seconds'] * 1e3:.2f} ms | {c['period_seconds']:g} s "
        f"| {c['share']:.2%} |"
        for name, c in r["cost"].items()
    ]
    p = r["parsing"]
    ours, theirs = (p[name]["median"] for name in ("exposition_seconds", "exposition_by_prometheus_client_seconds"))
    rows += [
        "",
        f"A line of the kernel's log costs {p['ordinary_line_seconds']['median'] * 1e6:.1f} µs, one that tells of "
        f"hardware {p['telling_line_seconds']['median'] * 1e6:.1f} µs. Reading 300 known of 3,000 series takes "
        f"{ours * 1e3:.1f} ms; prometheus-client's parser takes {theirs * 1e3:.0f} ms for all.",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
