"""HLS as it grows: playlists written by the test, segments made by FFmpeg beforehand."""

from __future__ import annotations

import http.server
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from dataplane.errors import BadMedia
from dataplane.operators.base import SourceRequest
from dataplane.operators.decode import Decode
from tests.operators.harness import Bench, run
from tests.operators.senders import RATE, STEP, Watched, watched
from tests.peers import ffmpeg

PER_SEGMENT = RATE // 2  # frames; half a second, rounded down
HELD = 3  # frames that an MPEG-TS demuxer and its parser may keep until more comes


def segments(folder: Path, name: str, count: int, size: str = "160x120", start: float = 0.0) -> list[str]:
    """MPEG-TS segments of PER_SEGMENT frames each."""
    command = [
        *(ffmpeg(), "-v", "error", "-f", "lavfi", "-i", f"testsrc2=size={size}:rate={RATE}"),
        *("-frames:v", str(PER_SEGMENT * count), "-c:v", "libx264", "-preset", "ultrafast", "-g", str(PER_SEGMENT)),
        *("-keyint_min", str(PER_SEGMENT), "-sc_threshold", "0", "-bf", "0", "-output_ts_offset", str(start)),
        *("-f", "hls", "-hls_time", str(PER_SEGMENT / RATE), "-hls_list_size", "0"),
        *("-hls_segment_filename", str(folder / f"{name}%d.ts"), str(folder / f"{name}.m3u8")),
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    made = [f"{name}{number}.ts" for number in range(count)]
    assert all((folder / segment).exists() for segment in made)
    return made


class Playlist:
    """A live playlist; every change is one rename, as packagers do it."""

    def __init__(self, path: Path, first: list[str]) -> None:
        self.path = path
        self._lines: list[str] = []
        self.add(*first)

    def add(self, *names: str, discontinuity: bool = False, end: bool = False) -> None:
        for name in names:
            self._lines += ["#EXT-X-DISCONTINUITY"] if discontinuity else []
            self._lines += [f"#EXTINF:{PER_SEGMENT / RATE},", name]
            discontinuity = False
        head = ["#EXTM3U", "#EXT-X-VERSION:3", "#EXT-X-TARGETDURATION:1", "#EXT-X-MEDIA-SEQUENCE:0"]
        temporary = self.path.with_suffix(".part")
        temporary.write_text("\n".join([*head, *self._lines, *(["#EXT-X-ENDLIST"] if end else []), ""]))
        temporary.replace(self.path)


def steps(seen: Watched) -> list[int]:
    return [b.pts - a.pts for a, b in pairwise(seen.frames)]


def test_a_local_playlist_that_grows_is_followed_to_its_end(tmp_path: Path) -> None:
    one = segments(tmp_path, "one", 5)
    two = segments(tmp_path, "two", 2, size="320x240", start=50.0)
    playlist = Playlist(tmp_path / "x.m3u8", one[:3])
    with watched(str(playlist.path), read_timeout_seconds=10.0) as seen:
        assert seen.bench.probe is not None
        assert seen.bench.probe.live
        seen.wait(lambda it: len(it.frames) >= 3 * PER_SEGMENT - HELD)
        playlist.add(*one[3:])
        seen.wait(lambda it: len(it.frames) >= 5 * PER_SEGMENT - HELD)
        playlist.add(*two, discontinuity=True, end=True)
        seen.wait(lambda it: it.ended)
        assert len(seen.frames) == 7 * PER_SEGMENT
        assert set(steps(seen)) == {STEP}
        assert seen.epochs == [0, 2]
        reason, offset = seen.bench.epochs[0]
        assert reason == "the times of the input jump forward"
        assert seen.first_of(2).pts - offset == round(51.4 * 90_000)  # FFmpeg's muxer adds 1.4 s
        assert {(frame.width, frame.height) for frame in seen.frames} == {(160, 120)}
        assert not seen.bench.lost_frames


def test_a_playlist_that_is_complete_is_no_live_source(tmp_path: Path) -> None:
    path = tmp_path / "x.m3u8"
    Playlist(path, segments(tmp_path, "one", 4)).add(end=True)

    bench = Bench(Decode, {"path": str(path)}, ports=("video",))
    frames = run(bench)

    assert bench.probe is not None
    assert not bench.probe.live
    assert bench.probe.duration_seconds == pytest.approx(4 * PER_SEGMENT / RATE, abs=0.1)
    assert len(frames) == 4 * PER_SEGMENT
    assert not bench.warnings
    assert not bench.epochs


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[int]:
    """A web server over a folder; its port."""
    handler = partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_web_server_that_goes_and_returns_repeats_nothing(tmp_path: Path) -> None:
    one = segments(tmp_path, "one", 6)
    playlist = Playlist(tmp_path / "x.m3u8", one[:4])
    with served(tmp_path) as port:
        seen_in = watched(f"http://127.0.0.1:{port}/x.m3u8", read_timeout_seconds=5.0)
        seen = seen_in.__enter__()
        try:
            seen.wait(lambda it: len(it.frames) >= 2 * PER_SEGMENT)
        except BaseException:
            seen_in.__exit__(None, None, None)
            raise
    try:
        seen.wait(lambda it: bool(it.bench.warnings))
        playlist.add(*one[4:], end=True)
        before = len(seen.frames)
        with served(tmp_path, port):
            seen.wait(lambda it: it.ended)
        assert len(seen.frames) - before >= 2 * PER_SEGMENT - 1
        own = [seen.source_pts(frame) for frame in seen.frames]
        assert own == sorted(set(own))  # nothing twice
        assert min(steps(seen)) > 0
        assert seen.epochs == [0, 2]
    finally:
        seen_in.__exit__(None, None, None)


def test_a_playlist_that_nobody_serves_is_named() -> None:
    with pytest.raises(BadMedia, match=r"Connection refused.*within 0\.5 s"):
        Decode.probe(
            Decode.Params.model_validate({"open_timeout_seconds": 0.5}),
            SourceRequest(input="http://127.0.0.1:9/x.m3u8"),
        )


def test_a_local_playlist_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadMedia, match="no such file"):
        Decode.probe(Decode.Params(), SourceRequest(input=str(tmp_path / "x.m3u8")))
