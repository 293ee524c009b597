"""Documents of the API for the stand-in: a snapshot, a cluster, and what a real run left in a frame store."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

Document = dict[str, Any]

LADDER = (
    ("decode", "scale-720p"),
    ("decode", "scale-360p"),
    ("scale-720p", "watermark-720p"),
    ("watermark-720p", "encode-720p"),
    ("encode-720p", "package-720p"),
    ("scale-360p", "encode-360p"),
    ("encode-360p", "package-360p"),
)
DEVICES = {
    "decode": "n0/vpu0",
    "scale-720p": "n0/gpu2",
    "scale-360p": "n0/cpu0",
    "watermark-720p": "n0/gpu2",
    "encode-720p": "n0/vpu0",
    "encode-360p": "n0/vpu1",
    "package-720p": "n0/cpu0",
    "package-360p": "n0/cpu1",
}


def pipeline(name: str = "abr-ladder", state: str = "running", **more: Any) -> Document:
    """A pipeline of the shape of the shipped ladder."""
    now = time.time()
    stream = {
        "stream": name,
        "epoch": 3,
        "input": "testsrc2",
        "frames_in": 12_345,
        "frames_done": 12_331,
        "frames_lost": 0,
        "frames_dropped": 0,
        "frames_per_second": 29.9,
        "latency_p50_seconds": 0.0412,
        "recent_p50_seconds": 0.0412,
        "latency_p99_seconds": 0.0618,
        "recent_p99_seconds": 0.0618,
        "latency_max_seconds": 0.131,
    }
    return {
        "name": name,
        "state": state,
        "run_id": f"{name}-7f3a",
        "submitted_unix_seconds": now - 420,
        "started_unix_seconds": now - 411,
        "decision_id": "d-0192",
        "pool_bytes": 148_000_000,
        "streams": [stream],
        "workers": [
            {
                "pid": 4100 + i,
                "operator": operator,
                "op": operator.split("-")[0],
                "device": device,
                "real_device": "vm/cpu0",
                "state": "running",
                "restarts": 0,
                "frames": 12_340 - i,
                "cpu_seconds": 31.25 + i * 7,
                "memory_bytes": 91_000_000 + i,
            }
            for i, (operator, device) in enumerate(DEVICES.items())
        ],
        "edges": [
            {
                "edge": f"{a}->{b}",
                "producer": a,
                "consumer": b,
                "queued": 2,
                "held": 1,
                "depth": 12,
                "bytes_per_second": 41_472_000.0,
            }
            for a, b in LADDER
        ],
        "outputs": [f"{name}-720p.mp4", f"{name}-360p.mp4"],
    } | more


def snapshot(*pipelines: Document, **store: Any) -> Document:
    """A whole snapshot."""
    now = time.time()
    return {
        "unix_seconds": now,
        "platform": {
            "version": "0.2.0",
            "host": "encoder-17",
            "pid": 4021,
            "state": "/var/lib/media-observatory",
            "url": "http://127.0.0.1:8050",
            "topology": "two-socket-8gpu",
            "started_unix_seconds": now - 11_520,
        },
        "pipelines": list(pipelines),
        "store": {
            "records": 1_204_331,
            "records_per_second": 210.4,
            "disk_bytes": 1_510_000_000,
            "budget_bytes": 10_000_000_000,
        }
        | store,
    }


def incident(kind: str, subject: str, words: str, severity: str = "warning", **more: Any) -> Document:
    """One that is open since a minute and a half."""
    now = time.time()
    return {
        "id": f"{kind}-{subject}",
        "kind": kind,
        "subject": subject,
        "severity": severity,
        "state": "open",
        "words": words,
        "confidence": 0.8,
        "sources": ["nvml"],
        "affected": [],
        "evidence": [
            {"at_ns": 1, "source": "nvml", "subject": subject, "words": "10 of 18 links are active"},
        ],
        "opened_at": now - 90,
        "closed_at": None,
        "noticed_ns": 1,
        "flaps": 0,
        "mend": None,
    } | more


def telemetry(*incidents: Document) -> Document:
    """Three receivers, one of which does not answer."""

    def receiver(name: str, **more: Any) -> Document:
        counts = {"polls": 4000, "failures": 0, "observations": 812_000, "events": 0, "dropped": 0, "cpu_seconds": 6.1}
        state = {"state": "working", "stale": False, "age_seconds": 0.12, "period_seconds": 0.25}
        return {"name": name, **state, **counts, **more}

    silent = {"state": "failing", "stale": True, "age_seconds": 41.0, "failures": 9}
    words = {"reason": "http://10.0.0.7:9400/metrics: connection refused", "mend": "is dcgm-exporter running there?"}
    return {
        "emulated": True,
        "topology_version": 12,
        "receivers": [
            receiver("nvml"),
            receiver("kmsg", period_seconds=None, events=3),
            receiver("dcgm", **silent, **words),
        ],
        "incidents_open": len(incidents),
        "incidents": list(incidents),
    }


def cluster(nodes: int, gpus: int = 8, degraded: bool = True) -> Document:
    """Nodes of two sockets, switches, GPUs and cards, under leaf switches and two spines."""
    found: Document = {
        "name": f"cluster-{nodes}x{gpus}",
        "provenance": "description",
        "sources": ["generated"],
        "nodes": [],
        "devices": [],
        "vertices": [],
        "links": [],
        "warnings": [],
    }
    spines = [f"fabric/spine{i}" for i in range(2)]
    leaves = [f"fabric/leaf{i}" for i in range(max(1, -(-nodes // 8)))]
    found["vertices"] += [{"id": name, "kind": "switch", "node": None} for name in spines + leaves]
    for leaf in leaves:
        for spine in spines:
            found["links"].append(link(leaf, spine, "rdma", 200e9, 0.6e-6, width=4, speed="400 Gb/s", count=4))
    for number in range(nodes):
        _node(found, f"n{number}", gpus, leaves[number // 8])
    if degraded and nodes > 1:
        found["links"][-1] |= {"state": "degraded", "width": 2, "bandwidth_bytes_per_second": 25e9}
        found["links"][-3] |= {"state": "down", "bandwidth_bytes_per_second": None}
    return found


def link(a: str, b: str, kind: str, bandwidth: float | None, latency: float | None, **more: Any) -> Document:
    """A link as `topology show` gives it."""
    return {
        "a": a,
        "b": b,
        "kind": kind,
        "count": None,
        "width": None,
        "speed": None,
        "bandwidth_bytes_per_second": bandwidth,
        "latency_seconds": latency,
        "state": "up",
        "utilisation": None,
        "numa_distance": None,
    } | more


def _node(found: Document, node: str, gpus: int, leaf: str) -> None:
    found["nodes"].append({"id": node})
    found["vertices"].append({"id": f"{node}/nvswitch0", "kind": "nvswitch", "node": node})
    for socket in range(2):
        found["vertices"].append({"id": f"{node}/socket{socket}", "kind": "socket", "node": node})
        _device(found, node, "cpu", socket, socket, "Xeon Platinum 8480C", 1_099_511_627_776)
        found["links"].append(link(f"{node}/cpu{socket}", f"{node}/socket{socket}", "memory", 281.6e9, 117e-9, count=8))
    found["links"].append(
        link(f"{node}/socket0", f"{node}/socket1", "upi", 144e9, 67e-9, width=24, speed="16 GT/s", count=3)
    )
    for switch in range(4):
        found["vertices"].append({"id": f"{node}/pcie{switch}", "kind": "pcie_switch", "node": node})
        found["links"].append(
            link(f"{node}/pcie{switch}", f"{node}/socket{switch // 2}", "pcie", 63e9, 275e-9, width=16, speed="32 GT/s")
        )
    for gpu in range(gpus):
        _device(found, node, "gpu", gpu, gpu * 2 // gpus, "H100 SXM5 80GB", 80_000_000_000)
        found["links"].append(
            link(f"{node}/gpu{gpu}", f"{node}/pcie{gpu * 4 // gpus}", "pcie", 63e9, 115e-9, width=16, speed="32 GT/s")
        )
        found["links"].append(
            link(f"{node}/gpu{gpu}", f"{node}/nvswitch0", "nvlink", 450e9, 193e-9, width=18, count=18)
        )
    for nic in range(2):
        _device(found, node, "nic", nic, nic, "ConnectX-7 400G", None)
        found["links"].append(
            link(f"{node}/nic{nic}", f"{node}/pcie{nic * 2}", "pcie", 63e9, 115e-9, width=16, speed="32 GT/s")
        )
        found["links"].append(link(f"{node}/nic{nic}", leaf, "rdma", 50e9, 0.6e-6, width=4, speed="400 Gb/s"))


def _device(found: Document, node: str, kind: str, index: int, numa: int, name: str, memory: int | None) -> None:
    found["devices"].append(
        {
            "id": f"{node}/{kind}{index}",
            "kind": kind,
            "node": node,
            "name": name,
            "numa_node": numa,
            "pci_bus_id": None,
            "memory_bytes": memory,
            "engines": [{"kind": "compute", "count": 1, "sessions": None}],
            "cpus": None,
        }
    )


def recorded() -> Document:
    """What `observatory frames ... --json` said after a run of the shipped ladder: lists, one frame, no frame."""
    document: Document = json.loads(Path(__file__).with_name("recorded.json").read_text())
    return document
