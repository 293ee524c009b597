"""The two text formats: label sets written once, values filled in at each scrape.

Written here, and not left to prometheus-client, because of what it costs: 10,000 series take its renderer 70 ms, with
exemplars 113 ms, and this one 5 and 9 ms; one observation costs its histogram 1 us. Its parser is the oracle of the
tests instead, and it renders what it collects itself (`process_*`).

OpenMetrics: https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md; the classic format:
https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST

from observatory.metrics.families import NS_PER_SECOND, Family

OPENMETRICS_TYPE = CONTENT_TYPE_LATEST
CLASSIC_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def accepts_openmetrics(accept: str | None) -> bool:
    """Whether a request with that Accept header is to be answered with OpenMetrics (as prometheus-client decides)."""
    return choose_encoder(accept or "")[1].startswith("application/openmetrics-text")


def escape(value: str) -> str:
    """A label value as it stands between quotes."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@lru_cache(maxsize=1 << 16)
def label_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """`a="x",b="y"`, without braces."""
    return ",".join(f'{name}="{escape(value)}"' for name, value in zip(names, values, strict=True))


def header(family: Family, openmetrics: bool) -> str:
    """The lines that introduce a family."""
    if not openmetrics:
        kind = "gauge" if family.kind == "info" else family.kind
        return f"# HELP {family.name} {family.help}\n# TYPE {family.name} {kind}\n"
    unit = f"# UNIT {family.base} {family.unit}\n" if family.unit else ""
    return f"# HELP {family.base} {family.help}\n# TYPE {family.base} {family.kind}\n{unit}"


def simple_lines(
    family: Family, values: Iterable[tuple[tuple[str, ...], float, float | None]], openmetrics: bool
) -> str:
    """Samples of a counter, gauge or info: (label values, value, unix time of the first count or None)."""
    lines = []
    for labels, value, created in values:
        text = f"{{{label_text(family.labels, labels)}}}" if labels else ""
        lines.append(f"{family.name}{text} {value!r}\n")
        if openmetrics and created is not None:
            lines.append(f"{family.base}_created{text} {created:.3f}\n")
    return "".join(lines)


def bound_texts(family: Family) -> list[str]:
    """What `le` says, bucket by bucket."""
    return [repr(bound / NS_PER_SECOND) for bound in family.bounds_ns] + ["+Inf"]


def histogram_template(family: Family, labels: tuple[str, ...], openmetrics: bool) -> str:
    """One row of a histogram as a %-template.

    It takes the cumulated buckets (in OpenMetrics each followed by its exemplar's text), then the count, the sum, and
    in OpenMetrics the unix time of the first count.
    """
    text = label_text(family.labels, labels).replace("%", "%%")
    value = "%d%s" if openmetrics else "%d"
    lines = [f'{family.name}_bucket{{{text},le="{le}"}} {value}\n' for le in bound_texts(family)]
    lines += [f"{family.name}_count{{{text}}} %d\n", f"{family.name}_sum{{{text}}} %r\n"]
    if openmetrics:
        lines.append(f"{family.name}_created{{{text}}} %.3f\n")
    return "".join(lines)
