"""Leaves out what a receiver says again and again: most of what hardware tells is the same from look to look.

What changed passes, and its first repetitions, by which some changes are confirmed; after that everything passes once
a second, so that whoever listens knows that it still holds. Batches of one receiver have the same things in the same
places, mostly: they are compared place by place, which takes a fraction of what checking and listening take.
"""

from __future__ import annotations

from collections.abc import Sequence

from observatory.model.observation import Observation

CONFIRMING = 2  # repetitions that pass
WHOLE_NS = 1_000_000_000


class Repeats:
    """Of one receiver. What it is given need not make sense."""

    def __init__(self) -> None:
        self._before: Sequence[object] = ()
        self._times: list[int] = []  # how often each place said the same
        self._whole_ns = 0

    def news(self, batch: list[object], now_ns: int) -> list[object]:
        """What of a batch is to be heard; all of it where it is of another shape than the last."""
        before, self._before = self._before, batch
        whole = now_ns - self._whole_ns >= WHOLE_NS or len(before) != len(batch)
        if whole:
            self._whole_ns = now_ns
        if len(before) != len(batch):
            self._times = [0] * len(batch)
            return batch
        times = self._times
        found: list[object] = []
        for place, (one, old) in enumerate(zip(batch, before, strict=True)):
            if type(one) is Observation and type(old) is Observation and _says_the_same(one, old):
                times[place] += 1
                if times[place] > CONFIRMING and not whole:
                    continue
            else:  # events too: each of them happened
                times[place] = 0
            found.append(one)
        return found


def _says_the_same(one: Observation, old: Observation) -> bool:
    if one.value is not old.value and (type(one.value) not in (float, int) or one.value != old.value):
        return False
    try:
        return (
            one.metric == old.metric
            and (one.subject is old.subject or one.subject == old.subject)
            and one.attributes == old.attributes
            and one.source == old.source
        )
    except Exception:  # of a plug-in that is wrong: let the check see it
        return False
