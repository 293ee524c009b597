"""What a new pipeline may not have, because another one has it: its name, its outputs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from observatory.app.errors import NameTaken
from observatory.app.status import output_paths
from observatory.app.typed import TypedPipeline


def refuse_taken(typed: TypedPipeline, running: Sequence[TypedPipeline], together: Sequence[TypedPipeline]) -> None:
    """Look at those that run, and at those that are to be started together with it. Raises NameTaken."""
    name = typed.pipeline.name
    if any(other.pipeline.name == name for other in running):
        raise NameTaken(
            f"a pipeline called {name!r} runs already",
            mend=f"remove it first (observatory remove {name}), or give this one another name (--name)",
        )
    if any(other.pipeline.name == name for other in together):
        raise NameTaken(f"two pipelines are called {name!r}", mend="give them different names (metadata: name)")
    # Two pipelines that write into one file would destroy it.
    wanted = {os.path.realpath(path) for path in output_paths(typed)}
    for other in (*running, *together):
        for path in output_paths(other):
            if os.path.realpath(path) in wanted:
                raise NameTaken(
                    f"{path} is being written by the pipeline {other.pipeline.name!r}",
                    mend="give every output a path of its own",
                )
