"""Print the JSON schema of decision records: `python -m scheduler.decision_schema > decision-record.schema.json`."""

from __future__ import annotations

import json
import sys
from typing import Any

from observatory.model.plan import DecisionRecord
from scheduler.specs.schema import DIALECT


def schema() -> dict[str, Any]:
    """JSON schema (2020-12) of one decision record as it is printed and stored."""
    return {"$schema": DIALECT, **DecisionRecord.model_json_schema(mode="serialization")}


def text() -> str:
    """The schema as it is published."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
