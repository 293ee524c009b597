"""Imports go down, never up or sideways (the layout's floors)."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("observatory", "scheduler", "dataplane", "chaos", "dashboards")

# What each region may import of the others; a region always may import itself.
ALLOWED: dict[str, set[str]] = {
    "model": set(),
    "ring": set(),
    "observatory": {"model", "ring"},
    "dataplane": {"model", "ring"},
    "scheduler": {"model", "ring", "observatory", "dataplane"},
    "chaos": {"model", "ring", "observatory", "dataplane", "scheduler"},
    "dashboards": {"model", "ring", "observatory", "dataplane", "scheduler"},
    "app": {"model", "ring", "observatory", "dataplane", "scheduler", "chaos", "dashboards"},
}


def region(module: str) -> str | None:
    """The region of a module of ours; None for a foreign module and for the bare package names."""
    parts = module.split(".")
    if parts[0] not in PACKAGES or module in ("observatory", "dataplane"):
        return None
    if module.startswith("observatory.model"):
        return "model"
    if module.startswith("observatory.app"):
        return "app"
    if module.startswith(("dataplane._ring", "dataplane.abi")):
        return "ring"
    return parts[0]


def modules() -> list[str]:
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def source_of(module: str) -> str:
    base = ROOT.joinpath(*module.split("."))
    return (base / "__init__.py" if base.is_dir() else base.with_suffix(".py")).read_text()


def violations(module: str, source: str) -> list[str]:
    """What this module imports and may not."""
    own = region(module)
    if own is None:
        return []
    regions = {imported: region(imported) for imported in imports(module, source)}
    return [name for name, other in regions.items() if other not in (None, own) and other not in ALLOWED[own]]


def imports(module: str, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports hide the floor; write the whole name"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", modules())
def test_imports_go_down(module: str) -> None:
    assert violations(module, source_of(module)) == []


@pytest.mark.parametrize("own", ["model", "observatory", "dataplane", "scheduler"])
def test_loaded_modules_stay_below(own: str) -> None:
    """What is really loaded: also catches imports that the source does not show."""
    names = [m for m in modules() if region(m) == own]
    script = "import importlib, sys\n" + "".join(f"importlib.import_module({n!r})\n" for n in names)
    out = subprocess.run(
        [sys.executable, "-c", script + "print(*sys.modules)"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = {region(name) for name in out.stdout.split()} - {None, own}
    assert loaded <= ALLOWED[own], f"importing all of {own} loads {sorted(str(x) for x in loaded - ALLOWED[own])}"


def test_the_check_sees_wrong_imports() -> None:
    upward = "def f():\n    from observatory.app.cli import run\n"
    sideways = "import observatory.frames.store\n"
    assert violations("dataplane.worker", upward)
    assert violations("dataplane.worker", sideways) == ["observatory.frames.store"]
    assert violations("dataplane.worker", "from observatory.model.media import TimeBase\n") == []
    assert violations("observatory.app.job", upward + sideways) == []
