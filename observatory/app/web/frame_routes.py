"""Routes about frames and decisions: what this process reads from the state directory itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from observatory.app.web.answers import (
    Decisions,
    FrameDetail,
    FrameProblem,
    Frames,
    SlowestFrames,
    Statistics,
    Streams,
)
from observatory.app.web.backend import Backend
from observatory.app.web.examples import DECISIONS, FRAME, FRAME_NOT_FOUND, FRAMES, SLOWEST, STATISTICS, STREAMS
from observatory.app.web.frame_reading import dumped
from observatory.app.web.queries import NO_QUERY, DecisionsQuery, FindQuery, FramesQuery, SlowestQuery, StreamQuery
from observatory.app.web.responses import JSON, MALFORMED, example, json_answer, marked, problem
from observatory.model.plan import DecisionRecord
from scheduler.audit import AuditStore

WHICH = problem(
    "There are several streams, and none was named",
    "there are 2 streams, and none was named",
    "NoSuchStream",
    "name one with stream: ladder/a, ladder/b",
)
NO_STREAM = problem(
    "There is no such stream or epoch", "there is no stream laddr", "NoSuchStream", "did you mean ladder?"
)
NO_FRAME = {
    "model": FrameProblem,
    "description": "There is no such frame; the nearest are named, and why it was lost if it was",
    "content": {JSON: {"example": marked(FRAME_NOT_FOUND)}},
}
UNREADABLE = problem("The store cannot be read", "is not a readable frame store", "FrameStoreDamaged")


def frame_routes(backend: Backend) -> APIRouter:
    """The routes. A store that is not there yet gives empty lists."""
    routes = APIRouter(prefix="/api/v1", responses={422: MALFORMED, 500: UNREADABLE})
    frames = backend.frames

    @routes.get(
        "/streams", dependencies=NO_QUERY, tags=["frames"], response_model=Streams, responses={200: example(STREAMS)}
    )
    async def streams() -> Response:
        """All streams that were ever recorded here, and their epochs (runs), newest first."""
        return json_answer(await backend.read(lambda: dumped(frames.streams())))

    @routes.get(
        "/frames",
        tags=["frames"],
        response_model=Frames,
        responses={200: example(FRAMES), 400: WHICH, 404: NO_STREAM},
    )
    async def list_frames(asked: Annotated[FramesQuery, Query()]) -> Response:
        """Frames of one stream, newest first. For the next page, pass `next_before` as `before`."""
        return json_answer(
            await backend.read(lambda: dumped(frames.frames(asked.stream, asked.epoch, asked.limit, asked.before)))
        )

    @routes.get(
        "/frames/find",
        tags=["frames"],
        response_model=FrameDetail,
        responses={200: example(FRAME), 400: WHICH, 404: NO_FRAME},
    )
    async def find(asked: Annotated[FindQuery, Query()]) -> Response:
        """One frame over all its hops, by `pts` (in the source stream's time base or another) or `source_index`.

        As `observatory frames find --json`. Times of events are CLOCK_MONOTONIC nanoseconds.
        """
        return json_answer(
            await backend.read(
                lambda: dumped(frames.find(asked.stream, asked.epoch, asked.pts, asked.ticks, asked.source_index))
            )
        )

    @routes.get(
        "/frames/slowest",
        tags=["frames"],
        response_model=SlowestFrames,
        responses={200: example(SLOWEST), 400: WHICH, 404: NO_STREAM},
    )
    async def slowest(asked: Annotated[SlowestQuery, Query()]) -> Response:
        """The complete frames that took longest from first launch to last release, slowest first."""
        key = ("slowest", asked.stream, asked.epoch, asked.count)
        return json_answer(
            await backend.statistics(key, lambda: frames.slowest(asked.stream, asked.epoch, asked.count))
        )

    @routes.get(
        "/frames/stats",
        tags=["frames"],
        response_model=Statistics,
        responses={200: example(STATISTICS), 404: NO_STREAM},
    )
    async def stats(asked: Annotated[StreamQuery, Query()]) -> Response:
        """Where the time goes, hop by hop, over a whole epoch; of all streams when none is named.

        A pass over everything that was recorded: answers are kept for a second, or for ten times as long as they took.
        """
        key = ("stats", asked.stream, asked.epoch)
        return json_answer(await backend.statistics(key, lambda: frames.stats(asked.stream, asked.epoch)))

    return routes


def decision_routes(backend: Backend) -> APIRouter:
    """The routes about the scheduler's decisions."""
    routes = APIRouter(prefix="/api/v1", tags=["decisions"], responses={422: MALFORMED})

    @routes.get("/decisions", response_model=Decisions, responses={200: example(DECISIONS)})
    async def decisions(asked: Annotated[DecisionsQuery, Query()]) -> Response:
        """The newest decisions of the scheduler, newest first."""

        def read() -> bytes:
            with AuditStore(backend.state) as audit:
                return dumped({"decisions": [asdict(line) for line in audit.list(asked.limit)]})

        return json_answer(await backend.read(read))

    @routes.get(
        "/decisions/{id}",
        dependencies=NO_QUERY,
        response_model=DecisionRecord,
        responses={404: problem("There is no such decision", "there is no decision 'd7'", "NoSuchDecision")},
    )
    async def decision(
        decision_id: Annotated[str, Path(alias="id", description="The decision's id, as in the list")],
    ) -> Response:
        """One decision: candidates, scores, placement, predicted costs. As `observatory plan --json` prints it."""

        def read() -> str:
            with AuditStore(backend.state) as audit:
                return audit.load(decision_id).model_dump_json()

        return json_answer(await backend.read(read))

    return routes
