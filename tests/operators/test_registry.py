"""Operators by name, and their reference."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dataplane.errors import NoSuchOperator
from dataplane.operators import registry
from dataplane.operators.reference import reference
from dataplane.operators.scale import Scale

ROOT = Path(__file__).resolve().parents[2]


def test_the_shipped_operators_are_installed() -> None:
    names = ("convert", "crop", "decode", "encode", "mux", "package", "scale", "super_res", "watermark")

    assert set(names) <= set(registry.operator_names())
    for name in names:
        kind = registry.operator_type(name)
        assert kind.op == name
        assert kind.summary
        assert kind.engines
        assert all(field.description for field in kind.Params.model_fields.values())


def test_an_unknown_operator_is_answered_with_the_nearest() -> None:
    with pytest.raises(NoSuchOperator, match="'scael'") as caught:
        registry.operator_type("scael")

    assert "did you mean 'scale'?" in (caught.value.mend or "")
    assert "watermark" in (caught.value.mend or "")


@pytest.mark.parametrize(
    ("value", "words"),
    [("dataplane.no_such_module:X", "cannot be loaded"), ("pathlib:Path", "not a subclass"), ("os:nothing", "cannot")],
)
def test_a_plug_in_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch, value: str, words: str) -> None:
    broken = EntryPoint("broken", value, registry.GROUP)
    good = EntryPoint("scale", "dataplane.operators.scale:Scale", registry.GROUP)
    monkeypatch.setattr(registry, "_plugins", lambda: {"broken": broken, "scale": good})
    registry.operator_type.cache_clear()
    try:
        with pytest.raises(NoSuchOperator, match=words):
            registry.operator_type("broken")
        assert registry.operator_type("scale") is Scale
    finally:
        registry.operator_type.cache_clear()


def test_the_reference_is_up_to_date() -> None:
    committed = (ROOT / "docs" / "reference" / "operators.md").read_text()

    assert committed == reference(), "run: python -m dataplane.operators.reference > docs/reference/operators.md"
