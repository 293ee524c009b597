"""mux: killed at every effect it has, its file is the one that it would have been."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import av
import pytest

from dataplane.operators.base import SourceRequest
from dataplane.operators.decode import Decode
from dataplane.operators.encode import Encode
from dataplane.operators.mux import Mux
from observatory.model.media import PortFormat
from tests.operators.dying import Fate, World
from tests.operators.harness import Bench, Payload
from tests.operators.media import pictures
from tests.operators.test_mux import FAST, names_in

PICTURES = 22  # 2.75 s, at 8 a second
VIDEO, AUDIO = "e->mux", "decode->mux:audio"


@dataclass(frozen=True)
class Material:
    """What a muxer gets, and from where."""

    script: list[tuple[str, Payload]]
    inputs: dict[str, PortFormat]
    start_seconds: float


def material(folder: Path, codec: str, audio: str, rate: int) -> Material:
    """Few packets of much time: 8 pictures a second with frames out of order, a sound of long frames."""
    source = folder / f"{codec}-{audio}.mkv"
    with av.open(str(source), "w") as output:
        video = output.add_stream("libx264", rate=8, options={"preset": "ultrafast"})
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        tone = cast(av.AudioStream, output.add_stream(audio, rate=rate))
        resampler = av.AudioResampler(format=tone.format.name, layout="mono", rate=rate)
        tone.layout = "mono"
        for number, frame in enumerate(pictures(PICTURES, (64, 48))):
            frame.pts, frame.time_base = number, Fraction(1, 8)
            output.mux(video.encode(frame))
        silence = av.AudioFrame(format="s16", layout="mono", samples=rate // 8)
        for number in range(PICTURES):
            silence.sample_rate, silence.pts, silence.time_base = rate, number * (rate // 8), Fraction(1, rate)
            for plane in silence.planes:
                plane.update(random.Random(number).randbytes(plane.buffer_size))
            for made in resampler.resample(silence):
                output.mux(tone.encode(made))
        for stream in (video, tone):
            output.mux(stream.encode(None))
    decode = Bench(Decode, source=SourceRequest(input=str(source)))
    encode = Bench(Encode, FAST[codec] | {"codec": codec, "gop": 6}, {"a->e": decode.format()})
    script: list[tuple[str, Payload]] = []
    for step in decode.steps():
        script += [(AUDIO, payload) for payload in step.get("audio", [])]
        for payload in step.get("video", []):
            script += [(VIDEO, packet) for packet in encode.feed(payload).get("video", [])]
    script += [(VIDEO, packet) for packet in encode.finish().get("video", [])]
    inputs: dict[str, PortFormat] = {VIDEO: encode.format(), AUDIO: decode.format("audio")}
    return Material(script, inputs, decode.start_seconds)


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, int], Material]:
    made: dict[tuple[str, str, int], Material] = {}

    def get(codec: str, audio: str, rate: int) -> Material:
        if (codec, audio, rate) not in made:
            made[codec, audio, rate] = material(tmp_path_factory.mktemp("material"), codec, audio, rate)
        return made[codec, audio, rate]

    return get


def contents(path: Path) -> Any:
    """All that a demuxer finds: of each stream what is said, and every packet with times, flag and bytes."""
    with av.open(str(path)) as container:
        said = [(s.type, s.time_base, s.start_time, s.duration, s.codec_context.extradata) for s in container.streams]
        packets: list[list[Any]] = [[] for _ in container.streams]
        for packet in container.demux():
            if packet.size:
                times = (packet.pts, packet.dts, packet.is_keyframe, packet.is_corrupt)
                packets[packet.stream_index].append((*times, bytes(packet)))
        return said, container.duration, packets


KINDS = [
    ("mp4", {}, "libx264", "aac", 8000),
    ("mp4", {"faststart": True}, "libx264", "aac", 8000),
    ("mp4", {"fragmented": True}, "libx264", "aac", 8000),
    ("mov", {}, "libx264", "aac", 8000),
    ("mkv", {}, "libx265", "aac", 8000),
    ("webm", {}, "libvpx-vp9", "libopus", 8000),
    ("ts", {}, "libx264", "mp2", 16000),
    ("m2ts", {}, "libx264", "aac", 8000),
]
IDS = ["-".join([suffix, *params]) for suffix, params, *_ in KINDS]


def world(folder: Path, suffix: str, params: dict[str, Any], given: Material, **more: Any) -> World:
    folder.mkdir(exist_ok=True)
    return World(
        Mux, {"path": str(folder / f"x.{suffix}"), **params}, given.inputs, given.script, given.start_seconds, **more
    )


def check(done: World, folder: Path, suffix: str, wanted: Any) -> None:
    assert names_in(folder) == [f"x.{suffix}"]
    assert contents(folder / f"x.{suffix}") == wanted
    assert set(done.outputs) == {(str(folder / f"x.{suffix}"), PICTURES)}
    assert done.counted == PICTURES
    assert not done.losses
    assert not done.warnings


@pytest.mark.parametrize(("suffix", "params", "codec", "audio", "rate"), KINDS, ids=IDS)
@pytest.mark.parametrize("torn", [False, True])
def test_a_death_anywhere_changes_nothing(
    tmp_path: Path, materials: Any, suffix: str, params: dict[str, Any], codec: str, audio: str, rate: int, torn: bool
) -> None:
    given = materials(codec, audio, rate)
    undisturbed, fate = world(tmp_path / "u", suffix, params, given), Fate()
    assert undisturbed.live(fate)
    wanted = contents(tmp_path / "u" / f"x.{suffix}")
    assert len(wanted[2][0]) == PICTURES
    check(undisturbed, tmp_path / "u", suffix, wanted)
    for at, name in enumerate(fate.names):
        if torn and not name.startswith("pwrite"):
            continue
        folder = tmp_path / f"{at}"
        disturbed = world(folder, suffix, params, given)
        disturbed.to_the_end([Fate(at, torn)])
        assert disturbed.lives == 2, name
        check(disturbed, folder, suffix, wanted)


@pytest.mark.parametrize(("suffix", "params", "codec", "audio", "rate"), KINDS, ids=IDS)
def test_deaths_during_recovery_too(
    tmp_path: Path, materials: Any, suffix: str, params: dict[str, Any], codec: str, audio: str, rate: int
) -> None:
    given = materials(codec, audio, rate)
    undisturbed, fate = world(tmp_path / "u", suffix, params, given), Fate()
    assert undisturbed.live(fate)
    wanted = contents(tmp_path / "u" / f"x.{suffix}")
    chance = random.Random(suffix + str(params))
    lives = 0
    for number in range(10):
        folder = tmp_path / str(number)
        disturbed = world(folder, suffix, params, given, shuffle=chance)
        fates = [Fate(int(chance.expovariate(1 / 25)), chance.random() < 0.5) for _ in range(chance.randint(2, 12))]
        disturbed.to_the_end(fates)
        check(disturbed, folder, suffix, wanted)
        lives += disturbed.lives
    assert lives > 40
