"""`_ring.pyi` names what the native module has, no more and no less."""

from __future__ import annotations

import ast
from pathlib import Path

from dataplane import _ring

STUB = Path(__file__).resolve().parents[2] / "dataplane" / "_ring.pyi"
IMPLIED = {"__init__", "__enter__", "__exit__", "__buffer__"}  # a slot without a name before Python 3.12


def members(body: list[ast.stmt]) -> set[str]:
    named = {item.name for item in body if isinstance(item, ast.FunctionDef | ast.ClassDef)}
    variables = (item.target for item in body if isinstance(item, ast.AnnAssign))
    return named | {target.id for target in variables if isinstance(target, ast.Name)}


def public(thing: object) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def test_the_stub_and_the_module_agree() -> None:
    stub = ast.parse(STUB.read_text())
    assert public(_ring) == members(stub.body)
    for described in (item for item in stub.body if isinstance(item, ast.ClassDef)):
        real = getattr(_ring, described.name)
        names = members(described.body)
        if not issubclass(real, Exception):
            assert names - set(vars(real)) - IMPLIED == set(), described.name
            assert public(real) == names - IMPLIED - {name for name in names if name.startswith("_")}, described.name


def test_errors_are_exceptions_of_this_module() -> None:
    for error in (_ring.RingError, _ring.LeaseError, _ring.RingEnded):
        assert issubclass(error, Exception)
        assert error.__module__ == "dataplane._ring"
