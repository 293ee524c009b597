"""Open a receiver on a tree and look once, or several times."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from observatory.model.observation import Observation, Seen
from observatory.receivers.checking import sensible
from observatory.receivers.protocol import Receiver, ReceiverContext

Told = dict[tuple[str, str], float | None]
"""(key of the subject, metric and the values of its attributes) -> value: ("0000:01:00.0", "link.errors aer_fatal")."""


def look(
    make: Callable[[], Receiver],
    root: Path,
    *changes: Callable[[], None],
    options: dict[str, str] | None = None,
    again: Callable[[Receiver], None] = lambda _: None,
) -> list[Told]:
    """What it tells at first and after each change. Everything that it tells must make sense."""

    async def run() -> list[Told]:
        receiver = make()
        await receiver.open(ReceiverContext(node="n0", root=root, options=options or {}))
        try:
            looks = [told(await receiver.poll(), receiver.name)]
            for change in changes:
                change()
                again(receiver)
                looks.append(told(await receiver.poll(), receiver.name))
            return looks
        finally:
            await receiver.close()
            await receiver.close()

    return asyncio.run(run())


def told(batch: Sequence[Seen], name: str) -> Told:
    refused: Counter[str] = Counter()
    kept, over = sensible(batch, name, refused, 1_000_000)
    assert (dict(refused), over) == ({}, 0)
    found: Told = {}
    for seen in kept:
        assert isinstance(seen, Observation)
        assert seen.subject.node == "n0"
        key = (seen.subject.key, " ".join([seen.metric, *seen.attributes.values()]))
        assert key not in found, f"{key} is told twice"
        found[key] = seen.value
    return found
