"""package: what the master playlist says of renditions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dataplane.operators.encode import Encode
from dataplane.operators.package import Package
from observatory.model.media import PixelFormat
from tests.operators.harness import Bench
from tests.operators.media import pictures
from tests.operators.presenting import Presenting, Rung, listed
from tests.operators.test_per_frame import raw, video_format
from tests.peers import ffmpeg

# -- the master playlist -----------------------------------------------------------------------------------------------


def test_the_master_playlist_says_what_a_player_chooses_by(tmp_path: Path, source: Path) -> None:
    folder = tmp_path / "live"
    rungs = (Rung((320, 180), {"profile": "baseline", "options": {"level": "3.1"}}), Rung((160, 90)))
    Presenting(source, folder, rungs).run()

    text = (folder / "master.m3u8").read_text()

    first, second = re.findall(r"^#EXT-X-STREAM-INF:(.*)$", text, re.M)
    # By hand, ISO/IEC 14496-15: profile_idc 66 = 0x42; constraint flags 0 and 1 for constrained baseline = 0xC0;
    # level 3.1 = 31 = 0x1F. AAC LC is object type 0x40 with audio object type 2.
    assert 'CODECS="avc1.42c01f,mp4a.40.2"' in first
    assert "RESOLUTION=320x180,FRAME-RATE=25.000" in first
    assert "RESOLUTION=160x90,FRAME-RATE=25.000" in second
    assert first.endswith('AUDIO="audio"')
    assert re.findall(r"^#EXT-X-MEDIA:(.*)$", text, re.M) == [
        'TYPE=AUDIO,GROUP-ID="audio",NAME="audio 1",DEFAULT=YES,AUTOSELECT=YES,CHANNELS="2",URI="audio-1.m3u8"'
    ]
    peak = peak_of(folder, "video-e0") + peak_of(folder, "audio-1")
    assert f"BANDWIDTH={peak}," in first  # RFC 8216, 4.3.4.2: the largest sum of segment bit rates


def peak_of(folder: Path, name: str) -> int:
    found = listed(folder / f"{name}.m3u8")
    rates = [(folder / n).stat().st_size * 8 / s for n, s in zip(found.names, found.seconds, strict=True)]
    return -int(-max(rates) // 1)


def codecs_of_ours(tmp_path: Path, codec: str, params: dict[str, Any], pixel_format: str) -> str:
    """What the master playlist says of a rendition, which is in `ours`."""
    form = video_format((160, 96), PixelFormat[pixel_format.upper()])
    encode = Bench(Encode, {"codec": codec, "threads": 1, "keyframe_seconds": 1, **params}, {"s->e": form})
    package = Bench(Package, {"folder": str(tmp_path / "ours"), "segment_seconds": 1}, {"e->p": encode.format()})
    frames = [frame.reformat(format=pixel_format) for frame in pictures(30, (160, 96))]
    packets = [p for frame in raw(frames, form) for p in encode.feed(frame).get("video", [])]
    for packet in packets + encode.finish().get("video", []):
        package.feed(packet)
    package.finish()
    return codecs_in(tmp_path / "ours")


def codecs_in(folder: Path) -> str:
    found = re.search(r'CODECS="([^"]*)"', (folder / "master.m3u8").read_text())
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("codec", "params", "pixel_format"),
    [
        ("libx264", {"preset": "veryfast"}, "yuv420p"),
        ("libx264", {"preset": "ultrafast"}, "yuv420p10le"),
        ("libsvtav1", {"preset": "12"}, "yuv420p10le"),
        ("libvpx-vp9", {"preset": "8"}, "yuv420p"),
    ],
)
def test_codecs_are_called_as_ffmpeg_calls_them(
    tmp_path: Path, codec: str, params: dict[str, Any], pixel_format: str
) -> None:
    ours = codecs_of_ours(tmp_path, codec, params, pixel_format)

    (tmp_path / "theirs").mkdir()
    subprocess.run(
        [
            *(ffmpeg(), "-v", "error", "-i", str(tmp_path / "ours" / "video-e.m3u8"), "-c", "copy"),
            *("-f", "hls", "-hls_time", "1", "-hls_segment_type", "fmp4"),
            *("-master_pl_name", "master.m3u8", str(tmp_path / "theirs" / "x.m3u8")),
        ],
        check=True,
    )
    assert ours == codecs_in(tmp_path / "theirs")


def test_hevc_is_called_as_its_standard_says(tmp_path: Path) -> None:
    """By hand, ISO/IEC 14496-15 annex E: FFmpeg's own playlists say nothing of it.

    Main is profile 1, compatible with profiles 1 and 2, so bits 1 and 2 of the flags, lowest bit first: 6. Main 10 is
    profile 2: 4. Level 1.0 is 30. Progressive and frame-only are the first and the fourth bit of a byte: 90.
    """
    (tmp_path / "main").mkdir()
    (tmp_path / "main10").mkdir()
    main = codecs_of_ours(tmp_path / "main", "libx265", {"preset": "ultrafast"}, "yuv420p")
    main_10 = codecs_of_ours(tmp_path / "main10", "libx265", {"preset": "ultrafast"}, "yuv420p10le")

    assert (main, main_10) == ("hvc1.1.6.L30.90", "hvc1.2.4.L30.90")
