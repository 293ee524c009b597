"""Print the JSON schema of pipeline files: `python -m scheduler.specs.schema > media-pipeline-spec.schema.json`."""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic.json_schema import models_json_schema

from scheduler.specs.models import MediaPipelineFile, PodGroupFile

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """JSON schema (2020-12) of a MediaPipeline or PodGroup. Names, inputs and cycles are checked by the reader only."""
    references, definitions = models_json_schema(
        [(MediaPipelineFile, "validation"), (PodGroupFile, "validation")],
        title="Media Pipeline Spec",
        description="A media pipeline for Media Observatory, as a MediaPipeline or a Kubernetes PodGroup.",
    )
    return {"$schema": DIALECT, **definitions, "oneOf": list(references.values())}


def text() -> str:
    """The schema as it is published."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
