"""Which of the pipelines that run has an operator of some name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from observatory.app.control import ControlClient, Gone, Refused, Silent
from observatory.app.errors import NoSuchPipeline
from observatory.model.status import Snapshot


def find_pipeline(sockets: Sequence[Path], pipeline: str | None, operator: str) -> tuple[Path, str]:
    """The control socket of what runs it, and the pipeline's name.

    Raises:
        NoSuchPipeline: nothing that runs has that operator, or several pipelines do.
    """
    found = []
    for path in sockets:
        client = ControlClient(path)
        try:
            snapshot = Snapshot.model_validate(client.ask("snapshot"))
        except (Gone, Silent, Refused):
            continue
        finally:
            client.close()
        found += [
            (path, running.name)
            for running in snapshot.pipelines
            if pipeline in (None, running.name) and any(w.operator == operator for w in running.workers)
        ]
    if not found:
        within = "" if pipeline is None else f" of pipeline {pipeline}"
        raise NoSuchPipeline(f"no operator {operator}{within} is running", mend="see what runs: observatory ps")
    if len(found) > 1:
        names = ", ".join(f"{name}/{operator}" for _, name in found)
        raise NoSuchPipeline(f"several pipelines have an operator {operator}", mend=f"name one of: {names}")
    return found[0]
