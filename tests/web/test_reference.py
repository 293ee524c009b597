"""The API's reference is up to date, every operation is described, and every example is what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from observatory.app.web import answers, examples
from observatory.app.web.reference import markdown, openapi, openapi_text, operations
from observatory.model.status import PipelineStatus, Snapshot
from tests.web.asking import Asker

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
MAKE = ".venv/bin/python -m observatory.app.web.reference"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi()


def test_the_page_is_what_the_api_says(document: dict[str, Any]) -> None:
    assert (FOLDER / "http-api.md").read_text() == markdown(document), f"run: {MAKE} > docs/reference/http-api.md"


def test_the_openapi_document_is_what_the_api_says() -> None:
    path = FOLDER / "http-api.openapi.json"
    assert path.read_text() == openapi_text(), f"run: {MAKE} --json > docs/reference/{path.name}"


def test_every_operation_is_described_with_its_errors(document: dict[str, Any]) -> None:
    found = list(operations(document))
    assert len(found) >= 16
    for operation in found:
        name = f"{operation.method} {operation.path}"
        assert operation.description, name
        assert all(parameter.get("description") for parameter in operation.parameters), name
        statuses = {answer.status for answer in operation.answers}
        assert operation.path in ("/metrics",) or "422" in statuses, name
        assert "{" not in operation.path or "404" in statuses, name
        for answer in operation.answers:
            documented = answer.schema or answer.status in ("101", "200")
            assert documented, f"{name}: {answer.status} has no document"
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.parametrize(
    ("example", "model"),
    [
        (examples.SNAPSHOT, Snapshot),
        (examples.PIPELINE, PipelineStatus),
        (examples.STREAMS, answers.Streams),
        (examples.FRAMES, answers.Frames),
        (examples.FRAME, answers.FrameDetail),
        (examples.SLOWEST, answers.SlowestFrames),
        (examples.FRAME_NOT_FOUND, answers.FrameProblem),
        (examples.STATISTICS, answers.Statistics),
        (examples.DECISIONS, answers.Decisions),
        (examples.TOPOLOGY, answers.TopologyDocument),
        (examples.COST, answers.Cost),
    ],
)
def test_examples_are_what_they_say(example: dict[str, Any], model: type[BaseModel]) -> None:
    model.model_validate(example)


def test_schemas_are_schemas_and_references_lead_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    named = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)))
    assert "Snapshot" in named
    assert named <= set(schemas)


@pytest.mark.parametrize(
    ("path", "query"),
    [("streams", ""), ("frames", ""), ("frames/stats", ""), ("snapshot", ""), ("topology/cost", "?level=nodes")],
)
def test_answers_are_what_the_document_says(document: dict[str, Any], api: Asker, path: str, query: str) -> None:
    said = document["paths"][f"/api/v1/{path}"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    whole = said | {"components": document["components"]}
    Draft202012Validator(whole).validate(api.get(f"/api/v1/{path}{query}").json())


def test_unknown_is_null_in_the_examples_too(document: dict[str, Any]) -> None:
    answer = document["paths"]["/api/v1/snapshot"]["get"]["responses"]["200"]
    assert answer["content"]["application/json"]["example"] == examples.SNAPSHOT
