"""Finding operators: plug-ins of the entry point group `media_observatory.operators`."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from dataplane.errors import NoSuchOperator
from dataplane.operators.base import Operator

GROUP = "media_observatory.operators"


@cache
def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def operator_names() -> tuple[str, ...]:
    """The names of all operators that are installed, sorted."""
    return tuple(sorted(_plugins()))


@cache
def operator_type(name: str) -> type[Operator]:
    """The operator of that name; its module is imported now.

    Raises:
        NoSuchOperator: nobody provides it, or what provides it cannot be loaded or is no operator.
    """
    point = _plugins().get(name)
    if point is None:
        raise _unknown(name)
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise NoSuchOperator(f"operator {name!r} ({point.value}) cannot be loaded: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Operator)):
        raise NoSuchOperator(f"operator {name!r}: {point.value} is not a subclass of {Operator.__qualname__}")
    return found


def _unknown(name: str) -> NoSuchOperator:
    known = operator_names()
    if not known:
        return NoSuchOperator(f"there is no operator {name!r}: none is installed", mend="run script/bootstrap again")
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return NoSuchOperator(f"there is no operator {name!r}", mend=f"{hint}Known: {', '.join(known)}")
