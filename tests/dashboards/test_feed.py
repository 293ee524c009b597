"""The feed behind the live values: what it remembers, and who waits for it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from dashboards.api import Api
from dashboards.errors import ApiRefused, ApiUnreachable
from dashboards.feed import Feed
from tests.dashboards import documents


class Answers:
    """What the API is to answer, one after the other; the last for ever."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)
        self.asked = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/api/v1/snapshot"
        self.asked += 1
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def feed(self) -> Feed:
        return Feed(Api(httpx.AsyncClient(transport=httpx.MockTransport(self), base_url="http://pages")))


def at(seconds: float, *pipelines: dict[str, Any]) -> dict[str, Any]:
    return documents.snapshot(*pipelines) | {"unix_seconds": seconds}


def test_remembers_five_minutes_of_each_stream_and_forgets_what_is_gone() -> None:
    one = documents.pipeline("one")
    answers = Answers(*(at(float(t), one) for t in range(0, 400, 10)), at(400.0))
    feed = answers.feed()

    async def run() -> None:
        for _ in range(40):
            moment = await feed.tick()
        assert moment.snapshot is not None
        series = feed.series(moment.snapshot.pipelines[0])["one"]
        assert list(series.times) == [float(t) for t in range(90, 400, 10)]
        assert set(series.frames_per_second) == {29.9}
        assert len(series.p99_seconds) == len(series.times)
        before = moment.snapshot.pipelines[0]
        await feed.tick()
        assert feed.series(before) == {}

    asyncio.run(run())


def test_a_pipeline_that_runs_no_more_leaves_a_gap_not_a_line() -> None:
    feed = Answers(at(1.0, documents.pipeline()), at(2.0, documents.pipeline(state="ended"))).feed()

    async def run() -> None:
        await feed.tick()
        moment = await feed.tick()
        assert moment.snapshot is not None
        series = feed.series(moment.snapshot.pipelines[0])["abr-ladder"]
        assert list(series.frames_per_second) == [29.9, None]

    asyncio.run(run())


def test_a_failure_keeps_the_last_snapshot_and_says_what_is_wrong() -> None:
    gone = httpx.Response(503, json={"error": {"kind": "Gone", "message": "nothing runs", "mend": "start it"}})
    feed = Answers(at(1.0, documents.pipeline()), gone, httpx.ConnectError("refused"), at(4.0)).feed()

    async def run() -> None:
        await feed.tick()
        moment = await feed.tick()
        assert isinstance(moment.error, ApiRefused)
        assert (moment.error.message, moment.error.mend, moment.error.status) == ("nothing runs", "start it", 503)
        assert moment.snapshot is not None
        moment = await feed.tick()
        assert isinstance(moment.error, ApiUnreachable)
        moment = await feed.tick()
        assert moment.error is None
        assert moment.snapshot is not None
        assert moment.snapshot.pipelines == ()

    asyncio.run(run())


def test_who_waits_gets_the_newest_and_misses_what_was_between() -> None:
    feed = Answers(at(1.0)).feed()

    async def run() -> None:
        waiting = asyncio.create_task(feed.after(0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await feed.tick()
        assert (await waiting).number == 1
        for _ in range(3):
            await feed.tick()
        assert (await feed.after(1)).number == 4

    asyncio.run(run())


def test_many_who_watch_ask_no_more_than_one() -> None:
    answers = Answers(at(1.0))
    feed = answers.feed()

    async def run() -> None:
        watching = [asyncio.create_task(feed.after(0)) for _ in range(50)]
        await feed.tick()
        await asyncio.gather(*watching)
        assert answers.asked == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (httpx.Response(200, text="<html>"), "did not answer with a JSON object"),
        (httpx.Response(200, json={"unix_seconds": 1.0}), "not what these pages understand: platform"),
        (httpx.Response(500, text="oops"), "HTTP 500"),
        (httpx.Response(422, json={"detail": [{"loc": ["query", "pts"], "msg": "not a number"}]}), "pts: not a number"),
    ],
)
def test_answers_that_nobody_expects_are_errors_in_words(answer: httpx.Response, words: str) -> None:
    moment = asyncio.run(Answers(answer).feed().tick())
    assert words in str(moment.error)
