"""Callbacks that run in the browser alone: functions of assets/, by name."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash


def in_browser(app: Dash, function: str, *dependencies: Any, **more: Any) -> None:
    """Register one. In files of their own rather than in the page: the content policy then knows no inline script."""
    register: Any = app.clientside_callback  # it has no types
    register(ClientsideFunction("observatory", function), *dependencies, **more)


def aria(**names: str) -> dict[str, Any]:
    """Attributes for who hears the page: `aria(label="Pages")` is `aria-label`."""
    return {f"aria-{name}": value for name, value in names.items()}
