"""Answers kept for a moment."""

from __future__ import annotations

import asyncio

import pytest

from observatory.app.web.kept import Kept


class Made:
    """Counts up, once the gate is open."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = asyncio.Event()

    async def __call__(self) -> int:
        self.count += 1
        number = self.count
        await self.gate.wait()
        return number


def test_all_who_wait_get_one_answer() -> None:
    async def run() -> None:
        kept: Kept[int] = Kept()
        made = Made()
        waiting = [asyncio.ensure_future(kept.get("a", made, 0.0)) for _ in range(20)]
        await asyncio.sleep(0)
        made.gate.set()
        assert set(await asyncio.gather(*waiting)) == {1}
        assert await kept.get("a", made, 60.0) == 1
        assert await kept.get("b", made, 60.0) == 2
        assert await kept.get("a", made, 0.0) == 3

    asyncio.run(run())


def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    async def run() -> None:
        kept: Kept[int] = Kept()
        made = Made()
        first, second = (asyncio.ensure_future(kept.get("a", made)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        made.gate.set()
        assert await second == 1

    asyncio.run(run())


def test_failures_are_told_and_not_kept() -> None:
    async def run() -> None:
        kept: Kept[int] = Kept()

        async def fail() -> int:
            raise ValueError("not today")

        for _ in range(2):
            with pytest.raises(ValueError, match="not today"):
                await kept.get("a", fail)
        made = Made()
        made.gate.set()
        assert await kept.get("a", made) == 1

    asyncio.run(run())


def test_dear_answers_are_kept_longer() -> None:
    async def run() -> None:
        kept: Kept[int] = Kept()
        count = 0

        async def slow() -> int:
            nonlocal count
            count += 1
            await asyncio.sleep(0.05)
            return count

        assert await kept.get("a", slow, 0.0, 1000.0) == 1
        await asyncio.sleep(0.01)
        assert await kept.get("a", slow, 0.0, 1000.0) == 1
        assert await kept.get("a", slow, 0.0, 0.0) == 2

    asyncio.run(run())


def test_no_more_than_so_many_are_kept() -> None:
    async def run() -> None:
        kept: Kept[int] = Kept(most=2)
        made = Made()
        made.gate.set()
        assert [await kept.get(key, made) for key in "abcab"] == [1, 2, 3, 4, 5]
        assert await kept.get("a", made) == 4

    asyncio.run(run())
