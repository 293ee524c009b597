"""What an exposition says, read by the parsers of prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic
from prometheus_client.samples import Exemplar

from observatory.frames.store import StreamRun
from observatory.metrics.book import MetricsBook
from observatory.model.manifest import RunManifest
from tests.frames import support as frames

RUN = StreamRun("ladder", 7, 2)
EDGES = ("decode->hd", "decode->sd", "hd->enc", "enc->mux")
REALTIME_OFFSET_SECONDS = 2000.0  # of the manifests of tests.frames.support


def manifest(run: StreamRun = RUN, *, run_id: str = "run-1", pipeline: str = "ladder") -> RunManifest:
    """The small ladder of tests.frames.support, as a pipeline of any name (Pipeline itself would refuse some)."""
    made = frames.manifest([run], run_id=run_id)
    return made.model_copy(update={"pipeline": made.pipeline.model_copy(update={"name": pipeline})})


@dataclass
class Scrape:
    """All samples of one exposition; a series that comes twice fails."""

    text: str
    values: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)
    exemplars: dict[tuple[str, frozenset[tuple[str, str]]], Exemplar] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[name, frozenset(labels.items())]

    def exemplar(self, name: str, **labels: str) -> Exemplar:
        return self.exemplars[name, frozenset(labels.items())]

    def named(self, name: str) -> dict[frozenset[tuple[str, str]], float]:
        return {labels: value for (sample, labels), value in self.values.items() if sample == name}

    def buckets(self, name: str, **labels: str) -> dict[str, float]:
        """`le` -> count of that bucket alone."""
        found: list[tuple[str, float]] = []
        wanted = set(labels.items())
        for series, value in self.named(f"{name}_bucket").items():
            (le,) = [value for key, value in series - wanted if key == "le"]
            if wanted == {(k, v) for k, v in series if k != "le"}:
                found.append((le, value))
        found.sort(key=lambda pair: float(pair[0]))
        before = 0.0
        alone = {}
        for le, value in found:
            if value != before:
                alone[le] = value - before
            before = value
        return alone


def scrape(book: MetricsBook, *, openmetrics: bool = True) -> Scrape:
    """What `/metrics` would answer, parsed."""
    text = book.render(openmetrics)[0].decode()
    found = Scrape(text)
    for family in (parse_openmetrics if openmetrics else parse_classic)(text):
        assert family.name not in found.kinds, f"{family.name} comes twice"
        found.kinds[family.name] = family.type
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found.values, f"{key} comes twice"
            found.values[key] = sample.value
            if sample.exemplar is not None:
                found.exemplars[key] = sample.exemplar
    return found


def series_lines(text: str) -> Iterator[str]:
    """The lines that are samples."""
    return (line for line in text.splitlines() if line and not line.startswith("#"))
