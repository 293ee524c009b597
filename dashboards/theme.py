"""Colours and type.

Figures take their text, grid and background from the style sheet, so that they follow the browser's theme without being
drawn again; what is here reads on both backgrounds and for colour-blind people (after Okabe & Ito).
"""

from __future__ import annotations

from typing import Any, Final

ACCENT: Final = "#2b7fd4"
GOOD: Final = "#009e73"
CAUTION: Final = "#e08a00"
BAD: Final = "#d55e00"
NEUTRAL: Final = "#8b929c"
FAINT: Final = "rgba(128,136,148,0.14)"
LINE: Final = "rgba(128,136,148,0.55)"

SERIES: Final = (ACCENT, "#e08a00", "#009e73", "#cc79a7", "#56b4e9", "#a08b00", "#8b929c")
"""Colours of streams, in this order."""

FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'

MANTINE: Final[dict[str, Any]] = {
    "primaryColor": "blue",
    "defaultRadius": "sm",
    "fontFamily": FONT,
    "headings": {"fontFamily": FONT, "fontWeight": "600"},
    "cursorType": "pointer",
}

STATE_TONES: Final = {
    "running": "good",
    "complete": "good",
    "starting": "busy",
    "waiting": "caution",
    "draining": "caution",
    "partial": "caution",
    "degraded": "caution",
    "incomplete": "caution",
    "dropped": "caution",
    "working": "good",
    "stale": "caution",
    "failing": "bad",
    "hanging": "bad",
    "info": "busy",
    "warning": "caution",
    "critical": "bad",
    "failed": "bad",
    "died": "bad",
    "lost": "bad",
}
"""Of a pipeline, stream, worker, frame, receiver or incident, by words that the style sheet has colours for. What is
not here is quiet."""

SURFACE: Final = "rgb(1,2,3)"
"""Never seen: the style sheet paints shapes of this colour like the panel they are drawn on."""
