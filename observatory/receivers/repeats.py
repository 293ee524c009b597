"""Leaves out what a receiver says again and again: most of what hardware tells is the same from look to look.

What changed passes, and its first repetitions, by which some changes are confirmed; after that everything passes once
a second, so that whoever listens knows that it still holds. Batches of one receiver have the same things in the same
places, mostly: they are compared place by place, which takes a fraction of what listening takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from observatory.model.observation import Observation, Seen

CONFIRMING = 2  # repetitions that pass
WHOLE_NS = 1_000_000_000


class Repeats:
    """Of one receiver."""

    def __init__(self) -> None:
        self._before: Sequence[Seen] = ()
        self._times: list[int] = []  # how often each place said the same
        self._whole_ns = 0

    def news(self, batch: Sequence[Seen], now_ns: int) -> Sequence[Seen]:
        """What of a batch is to be heard; all of it where it is of another shape than the last."""
        before, self._before = self._before, batch
        if len(before) != len(batch) or now_ns - self._whole_ns >= WHOLE_NS:
            self._whole_ns = now_ns
            whole = True
        else:
            whole = False
        if len(before) != len(batch):
            self._times = [0] * len(batch)
            return batch
        times = self._times
        found: list[Seen] = []
        for place, (one, old) in enumerate(zip(batch, before, strict=True)):
            if _is_same(one, old):
                times[place] += 1
                if times[place] > CONFIRMING and not whole:
                    continue
            else:
                times[place] = 0
            found.append(one)
        return found


def _is_same(one: Seen, old: Seen) -> bool:
    """Events are never the same: each of them happened."""
    return (
        isinstance(one, Observation)
        and isinstance(old, Observation)
        and one.value == old.value
        and one.metric == old.metric
        and (one.subject is old.subject or one.subject == old.subject)
        and one.attributes == old.attributes
        and one.source == old.source
    )
