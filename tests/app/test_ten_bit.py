"""10 bits a sample, 4K and 8K, from a file to a file: FFmpeg makes what goes in and looks at what comes out."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dataplane._ring import Descriptor, RingProducer, SizeClass
from dataplane.operators.base import OutputPort, SlotClass
from dataplane.sizing import size_port
from observatory.model.media import PayloadKind, PixelFormat, TimeBase, VideoFormat
from tests.app.command import Workspace
from tests.peers import ffmpeg

PEER = Path(__file__).with_name("large_frame_peer.py")
DEEP_PQ = "yuv420p10le(tv, bt2020nc/bt2020/smpte2084"  # as FFmpeg says range, matrix, primaries and transfer
COUNT = 2
Samples = npt.NDArray[np.uint16]

SPEC = """apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {{name: deep}}
spec:
  operators:
    - {{name: decode, op: decode}}
{middle}
    - {{name: out, op: mux, inputs: [enc], params: {{path: {out}}}}}
"""
LOSSLESS = "codec: libx264, preset: ultrafast, options: {qp: 0}"


def gradient(width: int, height: int, number: int) -> list[Samples]:
    """Y, U, V of a picture in which neighbours differ by less than one step of 8 bits, within the limited range."""
    x, y = np.arange(width, dtype=np.uint32), np.arange(height, dtype=np.uint32)[:, None]
    luma = 64 + (x + 2 * y + 5 * number) % 877
    chroma_x, chroma_y = x[: width // 2], y[: height // 2]
    blue = 64 + (chroma_x + 3 * chroma_y + number) % 897
    red = 960 - (2 * chroma_x + chroma_y + 3 * number) % 897
    return [np.ascontiguousarray(plane, dtype="<u2") for plane in (luma, blue, red)]


def make_clip(path: Path, size: tuple[int, int], count: int, codec: tuple[str, ...]) -> None:
    """A clip of gradients in PQ, written by FFmpeg without loss."""
    command = [
        *(ffmpeg(), "-v", "error", "-f", "rawvideo", "-pixel_format", "yuv420p10le"),
        *("-video_size", f"{size[0]}x{size[1]}", "-framerate", "25", "-i", "-"),
        *("-vf", "setparams=colorspace=bt2020nc:color_primaries=bt2020:color_trc=smpte2084:range=tv"),
        *(*codec, str(path)),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for number in range(count):
            for plane in gradient(*size, number):
                process.stdin.write(plane.data)
        process.stdin.close()
    assert process.returncode == 0


def decoded(path: Path, size: tuple[int, int], *filters: str) -> list[list[Samples]]:
    """Y, U, V of each frame as FFmpeg decodes it, or as it comes out of FFmpeg's filters."""
    graph = ["-vf", ",".join(filters)] if filters else []
    done = subprocess.run(
        [ffmpeg(), "-v", "error", "-i", str(path), *graph, "-pix_fmt", "yuv420p10le", "-f", "rawvideo", "-"],
        capture_output=True,
        check=True,
    )
    width, height = size
    luma, chroma = width * height, width * height // 4
    frames = np.frombuffer(done.stdout, "<u2").reshape(-1, luma + 2 * chroma)
    return [
        [
            frame[:luma].reshape(height, width),
            frame[luma : luma + chroma].reshape(height // 2, width // 2),
            frame[luma + chroma :].reshape(height // 2, width // 2),
        ]
        for frame in frames
    ]


def said_of(path: Path) -> str:
    """What FFmpeg says of the only stream."""
    done = subprocess.run([ffmpeg(), "-hide_banner", "-i", str(path)], capture_output=True, text=True, check=False)
    return next(line for line in done.stderr.splitlines() if "Video:" in line)


def run(workspace: Workspace, clip: Path, *middle: str, out: str = "out.mp4") -> Path:
    """Run decode -> middle -> mux; the output."""
    target = workspace.folder / out
    spec = SPEC.format(out=target, middle="\n".join(f"    - {{{line}}}" for line in middle))
    done = workspace.run("run", workspace.write(spec), "--input", clip, "--queue-frames", 1, "--json")
    assert done.code == 0, done.err
    assert not done.json["warnings"]
    return target


def same(ours: list[list[Samples]], theirs: list[list[Samples]]) -> bool:
    return len(ours) == len(theirs) and all(
        np.array_equal(a, b) for mine, other in zip(ours, theirs, strict=True) for a, b in zip(mine, other, strict=True)
    )


@pytest.fixture(scope="module")
def clip_4k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("4k") / "4k.mkv"
    make_clip(path, (3840, 2160), COUNT, ("-c:v", "ffv1", "-level", "3", "-slices", "4"))
    return path


def test_4k_through_p010_and_back_loses_nothing(workspace: Workspace, clip_4k: Path) -> None:
    target = run(
        workspace,
        clip_4k,
        "name: semi, op: convert, inputs: [decode], params: {pixel_format: p010le}",
        "name: planar, op: convert, inputs: [semi], params: {pixel_format: yuv420p10le}",
        f"name: enc, op: encode, inputs: [planar], params: {{{LOSSLESS}}}",
    )

    assert DEEP_PQ in said_of(target)
    assert "3840x2160" in said_of(target)
    frames = decoded(target, (3840, 2160))
    assert same(frames, [gradient(3840, 2160, number) for number in range(COUNT)])
    assert len(np.unique(frames[0][0] % 4)) == 4, "the two bits that 8 do not have"


@pytest.mark.slow
def test_4k_scaled_is_what_ffmpeg_makes_of_it(workspace: Workspace, clip_4k: Path) -> None:
    target = run(
        workspace,
        clip_4k,
        "name: semi, op: convert, inputs: [decode], params: {pixel_format: p010le}",
        "name: small, op: scale, inputs: [semi], params: {width: 1920, height: 1080, method: bicubic}",
        "name: planar, op: convert, inputs: [small], params: {pixel_format: yuv420p10le}",
        f"name: enc, op: encode, inputs: [planar], params: {{{LOSSLESS}}}",
        out="out.mkv",
    )

    ours = decoded(target, (1920, 1080))
    theirs = decoded(clip_4k, (1920, 1080), "format=p010le", "scale=1920:1080:flags=bicubic")
    assert len(ours) == len(theirs) == COUNT
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert np.abs(a.astype(int) - b).max() <= 1  # two versions of libswscale may round apart
    assert len(np.unique(ours[0][0] % 4)) == 4
    assert DEEP_PQ in said_of(target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        ("codec: libx265, preset: ultrafast, crf: 10, profile: main10", "hevc (Main 10)"),
        ("codec: libsvtav1, preset: 12, crf: 15", "av1 (libdav1d) (Main)"),
    ],
)
def test_4k_in_the_10_bit_profiles(workspace: Workspace, clip_4k: Path, encoder: str, words: str) -> None:
    target = run(workspace, clip_4k, f"name: enc, op: encode, inputs: [decode], params: {{{encoder}}}")

    assert words in said_of(target)
    assert DEEP_PQ in said_of(target)
    frames = decoded(target, (3840, 2160))
    assert len(frames) == COUNT
    # Away from the edges of the gradient, the picture is closer than a step of 8 bits: 4.
    error = np.abs(frames[0][0].astype(int) - gradient(3840, 2160, 0)[0])
    assert np.median(error) < 2


@pytest.fixture(scope="module")
def clip_8k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("8k") / "8k.nut"
    make_clip(path, (7680, 4320), COUNT, ("-c:v", "rawvideo"))
    return path


def test_8k_is_cropped_at_its_far_corner(workspace: Workspace, clip_8k: Path) -> None:
    target = run(
        workspace,
        clip_8k,
        "name: corner, op: crop, inputs: [decode], params: {x: 7424, y: 4176, width: 256, height: 144}",
        f"name: enc, op: encode, inputs: [corner], params: {{{LOSSLESS}}}",
        out="out.mkv",
    )

    expected = [
        [y[4176:4320, 7424:7680], u[2088:2160, 3712:3840], v[2088:2160, 3712:3840]]
        for y, u, v in (gradient(7680, 4320, number) for number in range(COUNT))
    ]
    assert same(decoded(target, (256, 144)), expected)


@pytest.mark.slow
def test_8k_scaled_down_is_what_ffmpeg_makes_of_it(workspace: Workspace, clip_8k: Path) -> None:
    target = run(
        workspace,
        clip_8k,
        "name: small, op: scale, inputs: [decode], params: {width: 1280, height: 720, method: bilinear}",
        f"name: enc, op: encode, inputs: [small], params: {{{LOSSLESS}}}",
        out="out.mkv",
    )

    ours = decoded(target, (1280, 720))
    theirs = decoded(clip_8k, (1280, 720), "scale=1280:720:flags=bilinear")
    assert len(ours) == COUNT
    for mine, other in zip(ours, theirs, strict=True):
        assert all(np.abs(a.astype(int) - b).max() <= 1 for a, b in zip(mine, other, strict=True))


def test_8k_frames_pass_between_two_processes_unchanged() -> None:
    form = VideoFormat(width=7680, height=4320, pixel_format=PixelFormat.P010LE, time_base=TimeBase(num=1, den=25))
    port = OutputPort("video", form, (SlotClass(form.bytes_per_frame, 1, shared_by_consumers=True),), "1 written")
    (size,) = size_port("decode", port, held_by_consumers=[1], queue_frames=1).sizes
    assert (size.slot_bytes, size.slot_count) == (99_532_800, 3)

    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    producer = RingProducer(capacity=8, size_classes=[SizeClass(size.slot_bytes, 2)])
    assert producer.size_classes[0].slot_bytes == 99_532_800
    command = [sys.executable, str(PEER), str(theirs.fileno()), str(size.slot_bytes)]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True) as process:
        _, (page,), _, _ = socket.recv_fds(ours, 1, 1)
        producer.admit(page, "block")
        os.close(page)
        socket.send_fds(ours, [b"r"], [producer.ring_fd, *producer.slab_fds])
        sent = []
        noise = np.random.default_rng(8).integers(0, 2**64, form.bytes_per_frame // 8, np.uint64)
        for index in range(4):  # more frames than slots
            lease = producer.acquire(form.bytes_per_frame, 60.0)
            assert lease is not None
            lease.array.view(np.uint64)[:] = noise
            lease.array.view(np.uint64)[index] = index
            noise[index] = index
            sent.append(f"{index} 99532800 {hashlib.sha256(noise.data).hexdigest()}")
            said = Descriptor(payload_kind=PayloadKind.VIDEO_FRAME, source_index=index)
            lease.publish(said, form.bytes_per_frame)
        producer.finish()
        out, _ = process.communicate(timeout=60)
    producer.close()
    ours.close()
    theirs.close()

    assert process.returncode == 0
    assert out.splitlines() == sent


def test_too_little_memory_is_refused_with_the_arithmetic(workspace: Workspace, clip_8k: Path) -> None:
    """Worked out by hand, with 1 frame queued, for x264 with 1 thread, no look-ahead and no B-frames:

    decode.video   2 of its own + 4 that x264 holds + 1 queued = 7 slots of 99,532,800 = 696,729,600 bytes
    enc.video      64 x 16,384 + 16 x 262,144 + 3 x (2 x 99,532,800 + 65,536)          = 602,636,288 bytes
                                                                                       1,299,365,888 bytes
    """
    encoder = "{name: enc, op: encode, inputs: [decode], params: {preset: ultrafast, threads: 1}}"
    spec = workspace.write(SPEC.format(out=workspace.folder / "out.mp4", middle=f"    - {encoder}"))
    limited = ("run", spec, "--input", clip_8k, "--queue-frames", 1)
    before = sorted(workspace.folder.iterdir())

    refused = workspace.run(*limited, "--memory-limit", "1299M", "--json")

    assert refused.code == 1
    words = refused.json["error"]["message"]
    assert words.startswith("the frame pools need 1299.4 MB, the limit given allows 1299.0 MB:\n")
    rows = words.splitlines()[1:]
    assert rows[0].startswith("  decode.video: 7 x 99.5 MB = 696.7 MB (")
    assert rows[0].endswith(" + 4 held by the slowest consumer + 1 queued)")
    assert rows[1].startswith("  enc.video: 64 x 0.0 MB + 16 x 0.3 MB + 3 x 199.1 MB = 602.6 MB (")
    assert len(rows) == 2
    left = [path for path in sorted(workspace.folder.iterdir()) if path not in before and path != workspace.state]
    assert left == []
    assert list(workspace.state.glob("run/*/*")) == []
