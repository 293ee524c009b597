"""Asks an application in-process, from tests that are plain functions."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any, Self

import httpx
from starlette.types import ASGIApp


class Asker:
    """A client whose event loop runs in a thread of its own, so that the application lives between two questions."""

    def __init__(self, app: ASGIApp, host: str = "observatory.test") -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=f"http://{host}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run_coroutine_threadsafe(self._client.request(method, path, **options), self._loop).result(60)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def put(self, path: str, **options: Any) -> httpx.Response:
        return self.request("PUT", path, **options)

    def delete(self, path: str, **options: Any) -> httpx.Response:
        return self.request("DELETE", path, **options)
