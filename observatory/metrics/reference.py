"""The metrics reference, from the table that the exposition is made from: `python -m observatory.metrics.reference`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import get_args

from observatory.metrics.book import KEPT_PIPELINES
from observatory.metrics.exposition import bound_texts
from observatory.metrics.families import FAMILIES, FRAME_LATENCY, Family
from observatory.metrics.hardware import MAX_SERIES
from observatory.metrics.hardware_names import prometheus_name
from observatory.metrics.histograms import MOST_EXEMPLAR_CHARACTERS
from observatory.metrics.incidents import FAMILIES as INCIDENT_FAMILIES
from observatory.metrics.otlp import FAMILIES as OTLP_FAMILIES
from observatory.metrics.receivers import FAMILIES as RECEIVER_FAMILIES
from observatory.model.hardware_metrics import METRICS
from observatory.model.status import PipelineState

QUERIES: tuple[tuple[str, str], ...] = (
    (
        "Latency by stream, p99, seconds",
        "histogram_quantile(0.99,\n"
        "  sum by (pipeline, stream, le) (rate(observatory_frame_latency_seconds_bucket[5m])))",
    ),
    ("Frames per second by stream", "sum by (pipeline, stream) (rate(observatory_frames_total[1m]))"),
    (
        "Dropped frames per second by edge",
        "sum by (pipeline, edge) (rate(observatory_frames_dropped_total[5m]))",
    ),
    (
        "Share of frames that were lost",
        "sum by (pipeline, stream) (rate(observatory_frames_lost_total[5m]))\n"
        "  / sum by (pipeline, stream) (rate(observatory_source_frames_total[5m]))",
    ),
    (
        "Share of its time that a consumer waits for frames (near 1, as behind a live source: idle; near 0: busy)",
        "sum by (pipeline, edge) (rate(observatory_fence_wait_seconds_sum[5m]))",
    ),
    (
        "Slot turnaround by edge, p99, seconds",
        "histogram_quantile(0.99,\n"
        "  sum by (pipeline, edge, le) (rate(observatory_slot_turnaround_seconds_bucket[5m])))",
    ),
    ("Bytes per second over each edge", "sum by (pipeline, edge) (rate(observatory_hop_bytes_total[1m]))"),
    ("Fullest edges, now", "topk(5, observatory_edge_queued_frames / observatory_edge_slots)"),
    (
        "Pool hit rate by port",
        'sum by (pipeline, operator, port) (rate(observatory_pool_allocations_total{outcome="hit"}[5m]))\n'
        "  / sum by (pipeline, operator, port) (rate(observatory_pool_allocations_total[5m]))",
    ),
    (
        "Share of the resident pool memory that is idle and cannot be given back",
        'sum by (pipeline) (observatory_pool_fragmentation_bytes{kind="external"})\n'
        "  / sum by (pipeline) (observatory_pool_resident_bytes)",
    ),
    ("What it took to map each ring and its slabs, seconds", "observatory_dma_map_seconds_sum"),
    ("Processors in use by operator", "sum by (pipeline, operator) (rate(observatory_worker_cpu_seconds_total[1m]))"),
)
"""What people ask, and the PromQL that answers."""


ALL_FAMILIES = (*FAMILIES, *INCIDENT_FAMILIES, *RECEIVER_FAMILIES, *OTLP_FAMILIES)
"""Of the platform itself; those of the hardware are named by its metrics."""


def alert_rules() -> str:
    """The example alert rules, as Prometheus reads them."""
    return (files("observatory.metrics") / "alerts.yaml").read_text()


def series_of(family: Family, openmetrics: bool) -> int:
    """How many series one label set of a family is; OpenMetrics has `_created` besides."""
    created = int(openmetrics and family.kind in ("counter", "histogram"))
    return created + (len(family.bounds_ns) + 3 if family.kind == "histogram" else 1)


def series_per(*labels: str, openmetrics: bool = True) -> int:
    """How many series one value of these labels together makes (with those of the pipeline)."""
    return sum(series_of(f, openmetrics) for f in FAMILIES if set(f.labels) == set(labels))


def series_per_edge(openmetrics: bool = True) -> int:
    """How many series an edge makes; counters of drops and gauges of queues included."""
    return series_per("pipeline", "stream", "edge", openmetrics=openmetrics) + series_per(
        "pipeline", "edge", openmetrics=openmetrics
    )


def port_series(openmetrics: bool = True) -> int:
    """How many series an output port's pool makes: by outcome and by kind of fragmentation, too."""
    port = ("pipeline", "operator", "port")
    outcomes, kinds = 5, 2
    return (
        series_per(*port, openmetrics=openmetrics)
        + outcomes * series_per(*port, "outcome", openmetrics=openmetrics)
        + kinds * series_per(*port, "kind", openmetrics=openmetrics)
    )


def reference() -> str:
    """The page docs/reference/metrics.md as Markdown."""
    return (
        "\n".join(
            [*_head(), *_tables(), *_hardware(), *_buckets(), *_exemplars(), *_cardinality(), *_queries(), *_alerts()]
        )
        + "\n"
    )


def _head() -> Iterator[str]:
    yield """# Metrics

`/metrics` of a running platform answers Prometheus: OpenMetrics 1.0 with exemplars to who asks for it (Prometheus
does), the classic text format 0.0.4 to everybody else. This page is made from the table that the answer is made from.

    scrape_configs:
      - job_name: media-observatory
        scrape_interval: 15s
        static_configs: [{targets: ["127.0.0.1:8050"]}]

Start Prometheus with `--enable-feature=exemplar-storage` to keep the exemplars.

Counts of a pipeline go on when it is submitted again, and begin at 0 with the platform (`_created` says when). What is
true of the moment, queues and memory, is gone when a run has ended. What is not known has no series; it is never 0."""


def _tables() -> Iterator[str]:
    titles = {"histogram": "Histograms", "counter": "Counters", "gauge": "Gauges", "info": "Information"}
    for kind, title in titles.items():
        yield f"\n## {title}\n\n| name | labels | meaning |\n|---|---|---|"
        for family in (f for f in ALL_FAMILIES if f.kind == kind):
            words = f"{family.help} {family.note}".rstrip()
            yield f"| `{family.name}` | {', '.join(family.labels)} | {words} |"
    yield """
| label | is |
|---|---|
| pipeline | `metadata.name` |
| stream | the stream's name: the pipeline's, with `/INPUT` when it has several |
| edge | `producer->consumer`; queues and mappings of audio have `:audio` behind it |
| operator | the operator's name |
| mapping | a port (`video`, `audio`) or an edge |
| port | an output port that has consumers |

Besides, `process_*` of the platform's own process, as prometheus-client names them: CPU seconds, memory, open files,
start time."""


def _hardware() -> Iterator[str]:
    yield """
## Hardware

What receivers see of the hardware, under the names that OpenTelemetry's rules make of its metrics. Labels of all:
`node`, the machine; what the source calls the thing (`pci="0000:3b:00.0"`, `interface="eth0"`, `nvlink`, `port`, `gpu`,
`numa`, `cpu`, `memory`; none for the machine itself); what that is in the topology, where it is known
(`device="n0/gpu3"`, `link`, `vertex`); and `source`, the receiver: two that see the same thing make two series.

| name | labels besides | OpenTelemetry | unit | meaning |
|---|---|---|---|---|"""
    for metric in METRICS.values():
        labels = ", ".join(name.replace(".", "_") for name in metric.attributes)
        yield f"| `{prometheus_name(metric)}` | {labels} | `{metric.name}` | `{metric.unit}` | {metric.help} |"
    yield f"""
A value that the source does not know, or has not told for a minute, has no series. Of more than {MAX_SERIES:,} series
the ones that came last are left out. [Over OTLP](../opentelemetry.md) the same values go to a collector."""


def _buckets() -> Iterator[str]:
    rows: dict[str, list[str]] = {}
    for family in FAMILIES:
        if family.kind == "histogram":
            rows.setdefault(", ".join(bound_texts(family)), []).append(f"`{family.name}`")
    yield """
## Buckets

Upper bounds in seconds, inclusive. They reach from 1 us to 10 s, from a futex wake to a stall:
"""
    for bounds, names in rows.items():
        yield f"- {', '.join(names)}: {bounds}"
    yield """
Values are counted in whole nanoseconds, so sums are exact. A quantile is as fine as its buckets; `observatory frames
stats` has exact ones."""


def _exemplars() -> Iterator[str]:
    yield f"""
## Exemplars

Buckets of `{FRAME_LATENCY.name}` and of the per-edge histograms carry the newest frame that
fell into them, with the time of its release. Of

    ..._bucket{{...,le="0.015"}} 6 # {{epoch="2",pts="9",time_base="1/25",stream="ladder"}} 0.013 1700000000.473

the newest frame of the bucket took 13 ms, and is found again by

    observatory frames find --stream ladder --epoch 2 --pts 9 --time-base 1/25

The PTS is that of the source for whole frames, and as it crossed the edge for the others. A frame without one has
`source_index` instead (`--source-index`). Labels take at most {MOST_EXEMPLAR_CHARACTERS} characters: a longer
stream's name is left out, the series has it."""


def _cardinality() -> Iterator[str]:
    def both(*labels: str) -> str:
        return f"{series_per(*labels)} ({series_per(*labels, openmetrics=False)})"

    yield f"""
## How many series

Labels come from pipelines only, never from media. In OpenMetrics (in the classic format, which lacks `_created`):

| each | series |
|---|---|
| edge | {series_per_edge()} ({series_per_edge(openmetrics=False)}) |
| stream | {both("pipeline", "stream")} |
| operator that lost a frame, and each source | {both("pipeline", "stream", "operator")} |
| port, and each edge again: a mapping | {both("pipeline", "operator", "mapping")} |
| port that has consumers | {port_series()} ({port_series(openmetrics=False)}) |
| operator | {both("pipeline", "operator")} |
| pipeline | {both("pipeline")}, and {len(get_args(PipelineState))} states |

The counts of {KEPT_PIPELINES} pipelines without a run are kept; then the one that ended first is forgotten.

## What it costs

Measured on a shared two-core virtual machine (Python 3.11): a record costs the collector 130 to 240 ns in batches of a
thousand and more, a whole frame 50 ns. 10,000 series are rendered in 5 ms, with `_created` and 1,400 exemplars in 9 ms
(prometheus-client: 70 ms, 113 ms, and 1 us for one observation). What whole scrapes cost, and series of the hardware:
[performance](../performance.md#telemetry)."""


def _queries() -> Iterator[str]:
    yield "\n## Queries"
    for title, query in QUERIES:
        indented = "\n".join(f"    {line}" for line in query.splitlines())
        yield f"\n{title}:\n\n{indented}"


def _alerts() -> Iterator[str]:
    yield "\n## Alerts\n\nA file for `rule_files`, to be found as `observatory/metrics/alerts.yaml`:\n\n```yaml"
    yield alert_rules().rstrip()
    yield "```"


if __name__ == "__main__":
    print(reference(), end="")
