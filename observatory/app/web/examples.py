"""Example documents of the OpenAPI document. A test holds each against the model that it is an example of."""

from __future__ import annotations

from typing import Any

PIPELINE: dict[str, Any] = {
    "name": "abr-ladder",
    "state": "running",
    "run_id": "20260102-030405-7",
    "reason": None,
    "submitted_unix_seconds": 1767323045.0,
    "started_unix_seconds": 1767323045.4,
    "ended_unix_seconds": None,
    "decision_id": "d-20260102-030405",
    "pool_bytes": 128849018,
    "pool_resident_bytes": 77309411,
    "pool_hit_rate": 0.998,
    "pools": [
        {
            "operator": "decode",
            "port": "video",
            "ring": 0,
            "slots": 17,
            "slots_in_use": 4,
            "slots_high_water": 7,
            "resident_bytes": 21790720,
            "internal_fragmentation_bytes": 10240,
            "external_fragmentation_bytes": 9338880,
            "hit_rate": 0.998,
            "allocations": {
                "hit": 1499,
                "fallback": 0,
                "reclaim": 0,
                "wait_for_slot": 3,
                "wait_for_descriptor": 0,
            },
        }
    ],
    "streams": [
        {
            "stream": "abr-ladder",
            "epoch": 1,
            "input": "film.mp4",
            "live": False,
            "state": "running",
            "frames_in": 1502,
            "frames_done": 1480,
            "frames_lost": 0,
            "frames_dropped": 0,
            "frames_per_second": 30.0,
            "latency_p50_seconds": 0.041,
            "latency_p99_seconds": 0.072,
            "latency_max_seconds": 0.19,
        }
    ],
    "workers": [
        {
            "pid": 4711,
            "operator": "decode",
            "op": "decode",
            "device": "n0/gpu0",
            "real_device": "n0/cpu0",
            "state": "running",
            "restarts": 0,
            "frames": 1502,
            "cpu_seconds": 12.5,
            "memory_bytes": 96468992,
            "shared_by": [],
        }
    ],
    "edges": [
        {
            "edge": "decode->hd",
            "producer": "decode",
            "consumer": "hd",
            "queued": 1,
            "held": 2,
            "depth": 8,
            "bytes_per_second": 93312000.0,
        }
    ],
    "outputs": ["abr-ladder-720p.mp4"],
    "warnings": [],
}

SNAPSHOT: dict[str, Any] = {
    "unix_seconds": 1767323100.0,
    "platform": {
        "version": "0.1.0",
        "host": "media1",
        "pid": 4700,
        "state": "/var/lib/media-observatory",
        "url": "http://127.0.0.1:8050",
        "topology": "two-socket-8gpu",
        "config_file": None,
        "started_unix_seconds": 1767323040.0,
        "web_restarts": 0,
        "warnings": [],
    },
    "pipelines": [PIPELINE],
    "store": {
        "records": 8880,
        "records_per_second": 180.0,
        "records_pending": 12,
        "records_dropped": 0,
        "events_lost": 0,
        "disk_bytes": 4194304,
        "budget_bytes": None,
        "keep_all_seconds": None,
        "error": None,
    },
}

STREAMS: dict[str, Any] = {
    "streams": [
        {
            "stream": "abr-ladder",
            "newest_epoch": 2,
            "epochs": [
                {
                    "epoch": 2,
                    "run_id": "20260102-030405-7",
                    "pipeline": "abr-ladder",
                    "input": "film.mp4",
                    "time_base": "1/12800",
                    "reason": None,
                    "began_unix_seconds": 1767323045.4,
                    "pts_offset": 0,
                    "first_source_index": 0,
                    "frames": 1502,
                    "finished": False,
                }
            ],
        }
    ]
}

_HEAD: dict[str, Any] = {
    "stream": "abr-ladder",
    "epoch": 2,
    "epoch_reason": None,
    "source_index": 120,
    "pts": 51200,
    "pts_offset": 0,
    "time_base": "1/12800",
    "end_to_end_seconds": 0.041,
    "began_unix_seconds": 1767323049.4,
    "state": "complete",
    "lost": [],
    "missing": [],
}

FRAMES: dict[str, Any] = {
    "stream": "abr-ladder",
    "epoch": 2,
    "frames": [_HEAD | {"hop_count": 6}],
    "lost": [],
    "next_before": 120,
}

SLOWEST: dict[str, Any] = {"frames": [_HEAD | {"hop_count": 6}]}

FRAME: dict[str, Any] = _HEAD | {
    "hops": [
        {
            "edge": "decode->hd",
            "producer_device": "n0/gpu0",
            "consumer_device": "n0/gpu0",
            "producer_real_device": "n0/cpu0",
            "consumer_real_device": "n0/cpu0",
            "bytes": 3110400,
            "slot": 3,
            "pts": 51200,
            "time_base": "1/12800",
            "events": {
                "DMA_BUF_ALLOC": 81234000000,
                "PRODUCER_KERNEL_LAUNCH": 81234100000,
                "FENCE_SIGNAL": 81240000000,
                "CONSUMER_WAIT_FENCE": 81239000000,
                "CONSUMER_KERNEL_LAUNCH": 81240100000,
                "SLOT_RELEASE": 81246000000,
                "LINK_START": None,
                "LINK_END": None,
            },
            "incomplete": False,
            "dropped": False,
            "link": None,
            "parents": [120],
        }
    ]
}

FRAME_NOT_FOUND: dict[str, Any] = {
    "error": {
        "kind": "NoSuchFrame",
        "message": "stream abr-ladder, epoch 2: no frame has PTS 51201 (time base 1/12800)",
        "file": None,
        "line": None,
        "mend": "the nearest: PTS 51200 and PTS 51627",
        "nearest": [
            {"pts": 51200, "time_base": "1/12800", "source_index": 120, "epoch": 2},
            {"pts": 51627, "time_base": "1/12800", "source_index": 121, "epoch": 2},
        ],
        "lost": None,
    }
}

_QUANTILES: dict[str, Any] = {"count": 1480, "p50_seconds": 0.006, "p99_seconds": 0.011, "max_seconds": 0.02}

STATISTICS: dict[str, Any] = {
    "streams": [
        {
            "stream": "abr-ladder",
            "epoch": 2,
            "epochs": 1,
            "records": 8880,
            "frames": 1480,
            "lost": 0,
            "events_lost": 0,
            "unmatched_events": 0,
            "records_dropped": 0,
            "finished": False,
            "end_to_end": _QUANTILES | {"p50_seconds": 0.041, "p99_seconds": 0.072, "max_seconds": 0.19},
            "hops": [
                {
                    "edge": "decode->hd",
                    "records": 1480,
                    "incomplete": 0,
                    "dropped": 0,
                    "bytes": 4603392000,
                    "phases": {"produce": _QUANTILES, "consume": _QUANTILES},
                    "link": None,
                }
            ],
        }
    ]
}

DECISIONS: dict[str, Any] = {
    "decisions": [
        {
            "id": "d-20260102-030405",
            "created_unix_seconds": 1767323045.1,
            "pipeline": "abr-ladder",
            "trigger": "submit",
            "predicted_cost": 0.00021,
        }
    ]
}

INCIDENT: dict[str, Any] = {
    "id": "nvlink_degraded-1767323050-1",
    "kind": "nvlink_degraded",
    "subject": "n0/gpu3--n0/nvswitch0:nvlink",
    "severity": "warning",
    "state": "open",
    "words": "8 of 18 links are down",
    "confidence": 0.8,
    "sources": ["nvml"],
    "affected": [],
    "evidence": [
        {
            "at_ns": 81000000000,
            "source": "nvml",
            "subject": "n0/gpu3--n0/nvswitch0:nvlink",
            "words": "10 links are active, 18 were",
            "metric": "link.width",
            "value": 10.0,
            "expected": 18.0,
        }
    ],
    "opened_at": 1767323050.2,
    "closed_at": None,
    "noticed_ns": 81000000000,
    "flaps": 0,
    "mend": "drain the GPU and look at nvidia-smi nvlink -s",
}

TOPOLOGY: dict[str, Any] = {
    "name": "pair",
    "provenance": "description",
    "sources": ["shipped: pair"],
    "nodes": [{"id": "n0"}],
    "devices": [{"id": "n0/cpu0", "kind": "cpu", "node": "n0"}, {"id": "n0/gpu0", "kind": "gpu", "node": "n0"}],
    "vertices": [],
    "links": [
        {
            "a": "n0/cpu0",
            "b": "n0/gpu0",
            "kind": "pcie",
            "count": 1,
            "width": 16,
            "speed": "32.0 GT/s",
            "bandwidth_bytes_per_second": 5.0e10,
            "latency_seconds": 1.0e-6,
            "state": "up",
        }
    ],
    "warnings": [],
}

COST: dict[str, Any] = {
    "level": "devices",
    "node": None,
    "message_bytes": 1048576,
    "unit": "seconds",
    "labels": ["n0/cpu0", "n0/gpu0"],
    "seconds": [[0.0, 2.197152e-05], [2.197152e-05, 0.0]],
    "truncated": False,
}
