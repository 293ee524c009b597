"""Finding receivers: plug-ins of the entry point group `media_observatory.receivers`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import entry_points

from observatory.receivers.supervised import Factory

GROUP = "media_observatory.receivers"


@dataclass(frozen=True, slots=True)
class Discovered:
    """What is installed: `receivers` by name, and of those that cannot be used the reason."""

    receivers: dict[str, Factory]
    broken: dict[str, str]


def discover(only: Collection[str] | None = None, but: Collection[str] = ()) -> Discovered:
    """The receivers that are installed: all, or `only` these, but for those named.

    A broken plug-in is told of and takes no other with it.
    """
    receivers: dict[str, Factory] = {}
    broken: dict[str, str] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda p: p.name):
        if (only is not None and point.name not in only) or point.name in but:
            continue
        try:
            found = point.load()
        except Exception as error:  # a plug-in's import may raise whatever it likes
            broken[point.name] = f"{point.value} cannot be loaded: {type(error).__name__}: {error}"
            continue
        reason = _unfit(found, point.name)
        if reason is None:
            receivers[point.name] = found
        else:
            broken[point.name] = f"{point.value} {reason}"
    return Discovered(receivers, broken)


def _unfit(found: object, name: str) -> str | None:
    if not isinstance(found, type):
        return "is no class"
    if not all(callable(getattr(found, method, None)) for method in ("open", "close")):
        return "has no open or no close"
    if callable(getattr(found, "poll", None)) == callable(getattr(found, "events", None)):
        return "needs one of poll and events"
    if getattr(found, "name", None) != name:
        return f"calls itself {getattr(found, 'name', None)!r} and is registered as {name!r}"
    return None
