"""package: what cannot work, before anything runs and later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataplane.errors import BadParameters, OutputFailed
from dataplane.operators.package import Package
from observatory.model.media import PacketFormat, PortFormat
from tests.operators.packaging import Stream, feed, packaging, seconds
from tests.operators.presenting import listed, parts_of
from tests.operators.test_mux import audio_format, little_room, names_in
from tests.operators.test_per_frame import video_format

# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "no playlist", "#EXTM3U\n#EXTINF:1,\n../x.m4s\n", "#EXTM3U\n#EXTINF:1,\n" + 300 * "x" + "\n", "\xff"]
)
def test_a_playlist_of_somebody_elses_in_the_folder_is_replaced(tmp_path: Path, stream: Stream, text: str) -> None:
    (tmp_path / "live").mkdir()
    (tmp_path / "x.m4s").write_bytes(b"not ours")
    (tmp_path / "live" / "video-e.m3u8").write_bytes(text.encode("latin-1"))

    bench = packaging(tmp_path / "live", stream)
    feed(bench, stream.second(0))
    bench.finish()

    assert listed(tmp_path / "live" / "video-e.m3u8").seconds == [1.0]
    assert (tmp_path / "x.m4s").read_bytes() == b"not ours"


@pytest.mark.parametrize("container", ["cmaf", "mpegts"])
def test_a_full_disk_is_named_and_what_was_finished_plays(tmp_path: Path, stream: Stream, container: str) -> None:
    bench = packaging(tmp_path / "live", stream, container=container)
    feed(bench, stream.second(0))
    feed(bench, stream.second(1))

    with little_room(2000), pytest.raises(OutputFailed, match="no space") as caught:
        feed(bench, stream.second(2))
    bench.operator.abort()
    bench.operator.close()
    bench.close()

    assert caught.value.file == str(tmp_path / "live")
    assert caught.value.mend
    assert not [name for name in names_in(tmp_path / "live") if name.startswith(".")]
    assert parts_of(tmp_path / "live", "video-e.m3u8") == [seconds(0, 25)]


def test_no_frames_make_no_presentation(tmp_path: Path, stream: Stream) -> None:
    bench = packaging(tmp_path / "live", stream)

    with pytest.raises(OutputFailed, match="no frame"):
        bench.finish()
    bench.operator.abort()
    bench.operator.close()

    assert names_in(tmp_path / "live") == []


def coded(codec: str, keyframe_seconds: float | None) -> PacketFormat:
    return PacketFormat(
        codec=codec,
        video=video_format((64, 48)),
        bytes_per_packet=1000,
        largest_packet_bytes=200_000,
        keyframe_seconds=keyframe_seconds,
    )


@pytest.mark.parametrize(
    ("params", "inputs", "words", "mend"),
    [
        ({"folder": "{}/no/where"}, [coded("h264", 1)], "no folder", "mkdir -p"),
        ({"folder": "{}/file"}, [coded("h264", 1)], "is no folder", "folder"),
        ({"folder": "{}/" + 300 * "x"}, [coded("h264", 1)], "too long", "shorter"),
        ({"container": "mpegts"}, [coded("av1", 1)], "mpegts segments cannot carry av1", "h264, hevc, or cmaf"),
        ({}, [coded("mpeg4", 1)], "cmaf segments cannot carry mpeg4", "encoder"),
        ({}, [coded("h264", 1), audio_format("pcm_s16le")], "cannot carry pcm_s16le", "audio: none"),
        ({"container": "mpegts"}, [coded("h264", 1), audio_format("opus")], "cannot carry opus", "audio: none"),
        ({}, [coded("h264", None)], "nothing says that a segment can begin", "keyframe_seconds: 4"),
        ({}, [coded("h264", 4), coded("h264", 3)], "4 s is no whole multiple of the 3 s", "keyframe_seconds: 4"),
        ({"segment_seconds": 0.7}, [coded("h264", 0.2)], "no whole multiple", "keyframe_seconds: 0.7"),
        ({}, [video_format((64, 48))], "raw frames", "encode"),
    ],
)
def test_what_cannot_work_is_found_before_anything_runs(
    tmp_path: Path, params: dict[str, Any], inputs: list[PortFormat], words: str, mend: str
) -> None:
    (tmp_path / "file").touch()
    settings = {"folder": "{}/live"} | params
    settings["folder"] = str(settings["folder"]).format(tmp_path)

    with pytest.raises(BadParameters, match=words) as caught:
        Package.output(Package.Params.model_validate(settings), inputs)
    assert mend in (caught.value.mend or "")
    assert names_in(tmp_path) == ["file"]


def test_lengths_are_exact_decimals(tmp_path: Path) -> None:
    """0.6 is three times 0.2, though 0.6 % 0.2 of doubles is 0.2."""
    params = Package.Params.model_validate({"folder": str(tmp_path / "live"), "segment_seconds": 0.6})

    assert Package.output(params, [coded("h264", 0.2)]) == ()
    assert not (tmp_path / "live").exists(), "nothing is made before anything runs"
