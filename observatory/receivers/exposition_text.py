"""Reads Prometheus' text format (version 0.0.4, and what OpenMetrics adds to it), of the series that are wanted only.

A node_exporter tells some thousands of series of which we know a few hundred: a line of the others costs a look-up.
`prometheus-client` parses all of them, at about twenty times the cost (docs/receivers.md).
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_CLOSED = re.compile(r"\s*\}")
_VALUE = re.compile(r"\s*([^\s#]+)(?:\s+[-+0-9.eE]+)?\s*(?:#.*)?\Z")
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPED = re.compile(r"\\.")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: name, labels, value. The value may be infinite or no number, as the format allows."""

    name: str
    labels: dict[str, str]
    value: float


def samples(text: str, wanted: Container[str]) -> Iterator[Sample]:
    """The samples whose name is wanted, in their order; a line that makes no sense is passed over."""
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        match = _NAME.match(line)
        if match is None or match[0] not in wanted:
            continue
        sample = _sample(line, match[0], match.end())
        if sample is not None:
            yield sample


def _sample(line: str, name: str, at: int) -> Sample | None:
    labels: dict[str, str] = {}
    rest = line[at:].lstrip()
    at = len(line) - len(rest)
    if rest.startswith("{"):
        found = _labels(line, at + 1)
        if found is None:
            return None
        labels, at = found
    value = _VALUE.match(line, at)
    if value is None:
        return None
    try:
        return Sample(name, labels, float(value[1]))
    except ValueError:
        return None


def _labels(line: str, at: int) -> tuple[dict[str, str], int] | None:
    """The labels from after the brace, and where the brace is closed; None where it is not."""
    labels: dict[str, str] = {}
    while not line.startswith("}", at):
        match = _LABEL.match(line, at)
        if match is None:
            end = _CLOSED.match(line, at)  # nothing between the braces, or a comma after the last
            return None if end is None else (labels, end.end())
        text = match[2]
        labels[match[1]] = _ESCAPED.sub(lambda m: _ESCAPES.get(m[0], m[0]), text) if "\\" in text else text
        at = match.end()
    return labels, at + 1
