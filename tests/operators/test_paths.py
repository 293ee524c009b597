"""Names of inputs and outputs that are more than a plain path: links, pipes, colons, what a killed process left."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from dataplane.errors import BadMedia, BadParameters
from dataplane.operators.base import SourceRequest
from dataplane.operators.decode import Decode
from dataplane.operators.mux import Mux
from tests.operators.media import make, read_back
from tests.operators.test_mux import names_in, packets_of, pipeline
from tests.operators.test_per_frame import video_format


def probe(path: str) -> None:
    Decode.probe(Decode.Params.model_validate({}), SourceRequest(input=path))


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    source = make(tmp_path / "source.mp4", count=3, size=(64, 48))
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "x.mp4"
    link.symlink_to("elsewhere/y.mp4")

    pipeline(source, link, audio=False)

    assert link.is_symlink()
    assert len(read_back(tmp_path / "elsewhere" / "y.mp4").pts) == 3


def test_a_link_to_no_folder_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "x.mp4"
    link.symlink_to(tmp_path / "nowhere" / "y.mp4")
    with pytest.raises(BadParameters, match="no folder"):
        Mux.output(Mux.Params.model_validate({"path": str(link)}), [packets_of(video_format((64, 48)))])


def test_colons_make_no_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "x.mp4", count=3, size=(64, 48)).rename(tmp_path / "12:30.mp4")

    pipeline(Path("12:30.mp4"), Path("http:31.mp4"), audio=False)

    assert len(read_back(tmp_path / "http:31.mp4").pts) == 3


def test_the_longest_name_works_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    source = make(tmp_path / "source.mp4", count=3, size=(64, 48))
    longest = tmp_path / ("ü" * 125 + "x.mp4")
    pipeline(source, longest, audio=False)
    assert len(read_back(longest).pts) == 3

    for path in (tmp_path / ("y" * 252 + ".mp4"), tmp_path / ("y" * 300) / "y.mp4"):
        with pytest.raises(BadParameters, match=r"too long|no folder"):
            Mux.output(Mux.Params.model_validate({"path": str(path)}), [packets_of(video_format((64, 48)))])


def test_what_a_killed_process_left_is_removed_but_not_what_is_in_use(tmp_path: Path) -> None:
    source = make(tmp_path / "source.mp4", count=3, size=(64, 48))
    for name in (".x.part-1.mp4", ".x.part-2.mp4", ".other.part-1.mp4", ".x.part-1.mkv"):
        (tmp_path / name).write_bytes(b"half")
    with (tmp_path / ".x.part-2.mp4").open("rb") as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        pipeline(source, tmp_path / "x.mp4", audio=False)

    assert sorted(set(names_in(tmp_path)) - {"source.mp4", "x.mp4"}) == sorted(
        [".x.part-2.mp4", ".other.part-1.mp4", ".x.part-1.mkv"]
    )


def test_what_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(BadMedia, match="pipe or a device") as refused:
            probe(path)
        assert refused.value.mend
    with pytest.raises(BadMedia, match="one process"):
        probe("/dev/stdin")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.mp4"
    Path(os.fsdecode(path)).write_bytes(b"x")
    with pytest.raises(BadMedia, match="not UTF-8"):
        probe(os.fsdecode(path))
