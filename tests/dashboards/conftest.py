"""Pages that must stay without errors, and stand-ins of the API."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
)

from observatory.app.topology_document import topology_document
from observatory.topology.load import load_topology
from tests.dashboards import documents
from tests.dashboards.standin import StandIn

expect.set_options(timeout=30_000)  # a busy machine is no failure


class Tab:
    """A page, and everything that went wrong in it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.wrong: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def _failed(self, request: Request) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):
            self.wrong.append(f"{request.url}: {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.wrong.append(f"{response.url}: {response.status}")
        if not response.url.startswith((self.address, "data:", "blob:")):
            self.foreign.append(response.url)

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path)
        return self.page


@pytest.fixture(scope="session")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One for all tests: scripts are read and compiled once, as in a browser that has been here before."""
    made = browser.new_context()
    yield made
    made.close()


@pytest.fixture
def tab(context: BrowserContext) -> Iterator[Callable[..., Tab]]:
    """Opens tabs; at the end of the test none of them may have seen an error or asked another host."""
    tabs = []

    def make(address: str, color_scheme: Literal["light", "dark"] = "light", width: int = 1280) -> Tab:
        made = Tab(context.new_page(), address)
        made.page.emulate_media(color_scheme=color_scheme)
        made.page.set_viewport_size({"width": width, "height": 800})
        tabs.append(made)
        return made

    yield make
    for made in tabs:
        made.page.close()
    assert [words for made in tabs for words in made.wrong] == []
    assert [url for made in tabs for url in made.foreign] == []


@contextmanager
def served(server: FastAPI) -> Iterator[str]:
    """An application on a free port of this machine; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(server, log_level="warning", ws="websockets-sansio", timeout_graceful_shutdown=1)
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not running.started:
            assert thread.is_alive()
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        running.should_exit = True
        thread.join(timeout=15)


@pytest.fixture(scope="session")
def shipped() -> documents.Document:
    """The shipped 8-GPU node as the API has it."""
    return topology_document(load_topology("two-socket-8gpu"))


@pytest.fixture(scope="session")
def _standin(shipped: documents.Document) -> Iterator[tuple[StandIn, str]]:
    made = StandIn(documents.snapshot(documents.pipeline()), shipped, documents.recorded())
    with served(made.server) as address:
        yield made, address


@pytest.fixture
def standin(_standin: tuple[StandIn, str], shipped: documents.Document) -> tuple[StandIn, str]:
    """A stand-in in its usual state: one ladder that runs, the shipped topology, recorded frames."""
    made, address = _standin
    made.base = documents.snapshot(documents.pipeline())
    made.topology, made.store = shipped, documents.recorded()
    made.failing = made.refusal = None
    made.submitted, made.removed = [], []
    return made, address
