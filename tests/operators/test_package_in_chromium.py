"""package: what a browser makes of it, by its own HLS player: renditions, sound, discontinuities, second headers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.operators.media import make
from tests.operators.presenting import Presenting, Rung

PAGE = b'<video id="v" muted src="live/master.m3u8"></video>'
STATE = """() => { const v = document.getElementById("v");
  return {time: v.currentTime, duration: v.duration, ended: v.ended, error: v.error && v.error.message,
          width: v.videoWidth, frames: v.getVideoPlaybackQuality().totalVideoFrames,
          sound: v.webkitAudioDecodedByteCount}; }"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and says nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    (folder / "index.html").write_bytes(PAGE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/index.html"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    made = browser.new_page()
    made.goto("about:blank")
    yield made
    made.close()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("source") / "source.mkv", count=65, size=(320, 180), audio="aac")


def play_to_the_end(page: Page, url: str) -> dict[str, Any]:
    """The player's own account at the end, or of what stopped it."""
    page.goto(url)
    page.evaluate("() => { const v = document.getElementById('v'); v.playbackRate = 4; v.play(); }")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        state: dict[str, Any] = page.evaluate(STATE)
        if state["ended"] or state["error"]:
            return state
        time.sleep(0.1)
    raise AssertionError(f"it does not end: {state}")


@pytest.mark.slow
@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_a_browser_plays_pictures_and_sound(tmp_path: Path, source: Path, page: Page, container: str) -> None:
    Presenting(source, tmp_path / "live", container=container).run()

    with served(tmp_path) as url:
        state = play_to_the_end(page, url)

    assert state["error"] is None
    assert state["duration"] == pytest.approx(65 / 25, abs=0.1)
    assert state["width"] in (320, 160)
    assert state["frames"] > 0
    assert state["sound"] > 0


def test_a_browser_plays_on_behind_a_restart_with_another_encoder(tmp_path: Path, source: Path, page: Page) -> None:
    """Times begin again behind the discontinuity, and a second header describes what follows."""
    folder = tmp_path / "live"
    killed = Presenting(source, folder, (Rung((320, 180)),))
    for number, _ in enumerate(killed.steps()):
        if number == 56:
            break
    killed.die()
    Presenting(source, folder, (Rung((320, 180), {"preset": "veryfast"}),)).run()
    assert (folder / "video-e0.m3u8").read_text().count("#EXT-X-MAP") == 2

    with served(tmp_path) as url:
        state = play_to_the_end(page, url)

    assert state["error"] is None
    assert state["duration"] == pytest.approx(2 + 65 / 25, abs=0.1)
    assert state["sound"] > 0
