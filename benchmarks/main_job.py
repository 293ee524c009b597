"""`script/bench pipeline`: the main job against ffmpeg, the cost of tracing, and finding a frame among 10 M records."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks import against_ffmpeg, frames_find, tracing_cost
from benchmarks.report import read_results, write_results, write_table

PARTS = ("ffmpeg", "tracing", "frames-find")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="script/bench pipeline", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds against ffmpeg (default 5)")
    parser.add_argument("--input", help="against ffmpeg: just the inputs whose name contains this; others stay")
    parser.add_argument("--only", choices=PARTS, action="append", help="just this part; repeatable")
    chosen = parser.parse_args(arguments)
    parts = chosen.only or PARTS
    if "ffmpeg" in parts:
        results = against_ffmpeg.measure(chosen.rounds, chosen.input)
        if chosen.input:
            results = {**read_results("pipeline"), **results}
        _publish("pipeline", results, against_ffmpeg.table(results))
    if "tracing" in parts:
        results = tracing_cost.main()
        tracing_cost.show(results)
        _publish("tracing", results, tracing_table(results))
    if "frames-find" in parts:
        results = frames_find.main()
        frames_find.show(results)
        _publish("frames-find", results, find_table(results))
    return 0


def _publish(name: str, results: dict[str, Any], table: str) -> None:
    write_table(name, table)
    print(table)
    print(f"\n{name}: results in {write_results(name, results)}")


def tracing_table(r: dict[str, Any]) -> str:
    """The cost of tracing as Markdown."""

    def row(label: str, part: dict[str, float]) -> str:
        return f"| {label} | {part['median']:.0f} ns | {part['min']:.0f}-{part['max']:.0f} |"

    return "\n".join(
        [
            f"CPU time per hop ({r['events_per_hop']} events of {r['event_bytes']} bytes, one record):",
            "",
            "| what | median | spread |",
            "|---|---|---|",
            row("a hop through the ring, untraced", r["hop_untraced_ns"]),
            row("a hop through the ring, traced", r["hop_traced_ns"]),
            f"| emission (the difference) | {r['emission_ns_per_hop']:.0f} ns | |",
            row("drain and assemble", r["drain_and_assemble_ns_per_hop"]),
            row("store, in large batches", r["store_ns_per_hop"]),
            row("the whole collector: drain, assemble, latency, store, in small batches", r["collector_ns_per_hop"]),
            f"| **all of it, share of one core at {r['hops_per_second']:,} hops/s** "
            f"| **{r['share_of_a_core'] * 100:.2f} %** | |",
            row("one poll of eight idle rings (20 times a second)", r["idle_poll_ns"]),
        ]
    )


def find_table(r: dict[str, Any]) -> str:
    """Look-ups as Markdown."""
    ingest, found = r["ingest"], r["look_up"]
    command = r["command"]["wall_seconds"]
    whole, records = found["frame_seconds"], found["records_seconds"]
    first = r["cold"]["first_look_up_seconds"]
    return "\n".join(
        [
            "| what | p50 | p99 |",
            "|---|---|---|",
            f"| look-up in process, records by PTS | {records['p50'] * 1e6:.1f} us | {records['p99'] * 1e6:.1f} us |",
            f"| look-up in process, whole frame, named | {whole['p50'] * 1e6:.1f} us | {whole['p99'] * 1e6:.1f} us |",
            f"| first look-up after opening, pages not in memory | {first['median'] * 1e3:.1f} ms "
            f"| {first['max'] * 1e3:.1f} ms (largest) |",
            f"| the command `frames find` | {command['median'] * 1e3:.0f} ms | {command['p99'] * 1e3:.0f} ms |",
            "",
            f"{ingest['records']:,} records of 100 streams: stored at {ingest['records_per_cpu_second'] / 1e6:.2f} M "
            f"records per CPU-second ({ingest['cpu_ns_per_record']:.0f} ns each), "
            f"{ingest['disk_bytes_per_record']:.0f} bytes each on disk.",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main([]))
