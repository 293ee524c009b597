"""Environment variables that override the configuration file: `OBSERVATORY_<SECTION>_<FIELD>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from observatory.app.config.sections import FramesSection, OtlpSection, PlatformSection, TelemetrySection
from observatory.documents import closest

PREFIX = "OBSERVATORY_"
SECTIONS: dict[str, type[BaseModel]] = {
    "platform": PlatformSection,
    "frames": FramesSection,
    "telemetry": TelemetrySection,
    "otlp": OtlpSection,
}
OTHERS = ("OBSERVATORY_BEGAN", "OBSERVATORY_CONFIG", "OBSERVATORY_DEBUG")
"""Variables of ours that are no fields of the file."""

Key = tuple[str, str]


def variables() -> dict[str, Key]:
    """Every variable, with the section and the field that it sets."""
    found: dict[str, Key] = {}
    for section, model in SECTIONS.items():
        for name, field in model.model_fields.items():
            key = field.alias or name
            found[f"{PREFIX}{section}_{key}".upper()] = (section, key)
    # It is older than the file and works for every command: one name is enough.
    del found["OBSERVATORY_PLATFORM_STATE"]
    return {**found, "OBSERVATORY_STATE": ("platform", "state")}


def from_environment(environment: Mapping[str, str]) -> dict[Key, tuple[str, str]]:
    """What is set: section and field -> (variable, text). Empty ones count as not set."""
    return {key: (name, environment[name]) for name, key in variables().items() if environment.get(name, "").strip()}


def nested(values: Mapping[Key, Any]) -> dict[str, Any]:
    """The same as a tree, as models take it."""
    tree: dict[str, Any] = {}
    for (section, field), value in values.items():
        tree.setdefault(section, {})[field] = value
    return tree


def misspelt(environment: Mapping[str, str]) -> list[str]:
    """Warnings about variables that look like ours and set nothing."""
    known = [*variables(), *OTHERS]
    words: list[str] = []
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX) or name in known:
            continue
        rest = name.upper().removeprefix(PREFIX)
        meant = closest(rest, [other.removeprefix(PREFIX) for other in known])
        if meant is not None:
            words.append(
                f"the environment variable {name} is not known and sets nothing: did you mean {PREFIX}{meant}?"
            )
        elif rest.startswith(tuple(f"{section.upper()}_" for section in (*SECTIONS, "pipelines"))):
            words.append(f"the environment variable {name} is not known and sets nothing")
    return words
