"""A stand-in for the API, for states that the real one is not easily brought into: empty, failing, a large machine."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from dashboards.app import create

Document = dict[str, Any]


class StandIn:
    """Answers /api/v1 with what it was given; a test changes that while the pages look at it."""

    def __init__(self, snapshot: Document, topology: Document, store: Document) -> None:
        self.began = time.time()
        self.base = snapshot
        self.topology = topology
        self.store = store
        self.failing: Document | None = None
        self.refusal: Document | None = None
        self.submitted: list[Document] = []
        self.removed: list[str] = []
        self.server = FastAPI(lifespan=self._lifespan)
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.server, raise_app_exceptions=False), base_url="http://pages"
        )
        self._routes()
        create(self.server, self._client)

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        async with self._client:
            yield

    def snapshot(self) -> Document:
        """The base snapshot with values that move with the clock."""
        now = time.time()
        age = now - self.began
        found: Document = {**self.base, "unix_seconds": now, "pipelines": []}
        for number, pipeline in enumerate(self.base["pipelines"]):
            if pipeline["state"] == "running":
                pipeline = _moved(pipeline, age + number * 7)
            found["pipelines"].append(pipeline)
        return found

    def _routes(self) -> None:
        @self.server.middleware("http")
        async def fail(request: Request, go_on: Any) -> Any:
            if self.failing is not None and request.url.path.startswith("/api/"):
                return JSONResponse({"error": self.failing}, status_code=503)
            return await go_on(request)

        @self.server.get("/api/v1/snapshot")
        async def snapshot() -> Document:
            return self.snapshot()

        @self.server.post("/api/v1/pipelines")
        async def submit(body: Document) -> Any:
            self.submitted.append(body)
            if self.refusal is not None:
                return JSONResponse({"error": self.refusal}, status_code=422)
            return {"name": self.base["pipelines"][0]["name"] if self.base["pipelines"] else "preview"}

        @self.server.delete("/api/v1/pipelines/{name}")
        async def remove(name: str) -> Document:
            self.removed.append(name)
            kept = [p for p in self.base["pipelines"] if p["name"] != name]
            self.base = {**self.base, "pipelines": kept}
            return {"name": name}

        @self.server.get("/api/v1/topology")
        async def topology() -> Document:
            return self.topology

        @self.server.get("/api/v1/topology/cost")
        async def cost(level: str = "auto", node: str | None = None) -> Document:
            return costs(self.topology, level, node)

        @self.server.get("/api/v1/incidents")
        async def incidents(state: str | None = None) -> Document:
            return {"incidents": [one for one in self.store.get("incidents", []) if state in (None, one["state"])]}

        @self.server.get("/api/v1/streams")
        async def streams() -> Document:
            return {"streams": self.store.get("streams", [])}

        @self.server.get("/api/v1/frames")
        async def frames() -> Document:
            return {"frames": self.store.get("frames", []), "lost": self.store.get("lost", [])}

        @self.server.get("/api/v1/frames/slowest")
        async def slowest() -> Document:
            return {"frames": self.store.get("slowest", [])}

        @self.server.get("/api/v1/frames/find")
        async def find(pts: int | None = None, source_index: int | None = None) -> Any:
            wanted = str(pts if pts is not None else source_index)
            if wanted in self.store.get("found", {}):
                return self.store["found"][wanted]
            return JSONResponse({"error": self.store["not_found"]}, status_code=404)


def _moved(pipeline: Document, age: float) -> Document:
    """A running pipeline some seconds later."""
    wave = math.sin(age / 5)
    streams = [
        {
            **stream,
            "frames_in": stream["frames_in"] + int(age * 30),
            "frames_done": stream["frames_done"] + int(age * 30),
            "frames_per_second": 29.9 + 0.4 * wave,
            "latency_p50_seconds": 0.041 + 0.006 * wave,
            "recent_p50_seconds": 0.041 + 0.006 * wave,
            "latency_p99_seconds": 0.062 + 0.014 * wave * math.sin(age / 11),
            "recent_p99_seconds": 0.062 + 0.014 * wave * math.sin(age / 11),
        }
        for stream in pipeline["streams"]
    ]
    edges = [
        {**e, "queued": round(2 + 2 * math.sin(age + i)), "held": 1 + (i + int(age)) % 3}
        for i, e in enumerate(pipeline["edges"])
    ]
    return {**pipeline, "streams": streams, "edges": edges}


def costs(topology: Document, level: str, node: str | None) -> Document:
    """Seconds for 1 MiB: plausible, with unknown cells; the real figures are the real API's business."""
    nodes = [n["id"] for n in topology["nodes"]]
    if level == "auto":
        level = "devices" if node or len(topology["devices"]) <= 64 else "nodes"
    devices = [d for d in topology["devices"] if node is None or d["node"] == node]
    labels = nodes if level == "nodes" else [d["id"] for d in devices]
    truncated = len(labels) > 512
    labels = labels[:512]
    seconds: list[list[float | None]] = []
    for i, a in enumerate(labels):
        row: list[float | None] = []
        for j, b in enumerate(labels):
            same = a.split("/")[0] == b.split("/")[0]
            row.append(
                0.0
                if i == j
                else None
                if "nic" in a and "nic" in b
                else (3e-6 if same else 3e-5) * (1 + abs(i - j) / 8)
            )
        seconds.append(row)
    return {
        "level": level, "node": node, "message_bytes": 1 << 20, "labels": labels, "seconds": seconds,
        "truncated": truncated,
    }  # fmt: skip
