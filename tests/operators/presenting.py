"""Presentations made by the tests, and what a player finds in them: FFmpeg for playing, text for the rest."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from dataplane.operators.decode import Decode
from dataplane.operators.encode import Encode
from dataplane.operators.package import Package
from dataplane.operators.scale import Scale
from tests.operators.harness import Bench, Payload
from tests.peers import ffmpeg

FAST = {"preset": "ultrafast", "threads": 1}
LEAD = 10  # seconds by which segments are later than the job, as documented


@dataclass(frozen=True)
class Rung:
    """One rendition."""

    size: tuple[int, int]
    params: dict[str, Any] = field(default_factory=dict)


LADDER = (Rung((320, 180)), Rung((160, 90)))


class Presenting:
    """Decode -> scale -> encode, for each rung, -> package, all in this process; step by step."""

    def __init__(
        self, source: Path, folder: Path, rungs: Sequence[Rung] = LADDER, keyframe_seconds: float = 1, **params: Any
    ) -> None:
        with_sound = params.get("audio") != "none"
        self.decode = Bench(Decode, {"path": str(source)}, ports=("video", "audio") if with_sound else ("video",))
        self.branches = []
        for rung in rungs:
            size = {"width": rung.size[0], "height": rung.size[1]}
            scale = Bench(Scale, size, {"decode->s": self.decode.format()})
            settings = {**FAST, "keyframe_seconds": keyframe_seconds, **rung.params}
            self.branches.append((scale, Bench(Encode, settings, {"s->e": scale.format()})))
        inputs = {f"e{number}->package": encode.format() for number, (_, encode) in enumerate(self.branches)}
        if "audio" in self.decode.outputs:
            inputs["decode->package:audio"] = self.decode.format("audio")
        self.package = Bench(Package, {"folder": str(folder), "segment_seconds": 1, **params}, inputs, name="package")

    def steps(self) -> Iterator[None]:
        """Run; after each step a player may look."""
        for step in self.decode.steps():
            for payload in step.get("audio", []):
                self.package.feed(payload, "decode->package:audio")
            for payload in step.get("video", []):
                self._through(payload)
            yield

    def _through(self, payload: Payload) -> None:
        for number, (scale, encode) in enumerate(self.branches):
            for picture in scale.feed(payload).get("video", []):
                for packet in encode.feed(picture).get("video", []):
                    self.package.feed(packet, f"e{number}->package")

    def finish(self) -> None:
        """What is in the encoders, and the end."""
        for number, (scale, encode) in enumerate(self.branches):
            assert not scale.finish()
            for packet in encode.finish().get("video", []):
                self.package.feed(packet, f"e{number}->package")
        self.package.finish()

    def run(self) -> Bench:
        """All of it; the packager's bench."""
        for _ in self.steps():
            pass
        self.finish()
        return self.package

    def die(self) -> None:
        """What the kernel leaves of a process that was killed."""
        self.package.operator.close()


@dataclass
class Played:
    """One stream as FFmpeg plays it: times in the presentation, in seconds, in decoding order."""

    kind: str
    size: str
    seconds: list[Fraction] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)


def play(playlist: Path, *, decode: bool = True) -> list[Played]:
    """Every stream of a playlist, pictures first, by a whole FFmpeg; anything that it complains of is an error."""
    copy = [] if decode else ["-c", "copy"]
    done = subprocess.run(
        [
            *(ffmpeg(), "-v", "warning", "-xerror", "-copyts", "-i", str(playlist), "-map", "0", *copy),
            *("-enc_time_base", "1:90000", "-fps_mode", "passthrough", "-f", "framemd5", "-"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    units: dict[int, Fraction] = {}
    found: dict[int, Played] = {}
    for line in done.stdout.splitlines():
        if said := re.match(r"#(tb|media_type|dimensions) (\d+): (\S+)", line):
            number, value = int(said[2]), said[3]
            stream = found.setdefault(number, Played("", ""))
            match said[1]:
                case "tb":
                    units[number] = Fraction(value)
                case "media_type":
                    stream.kind = value
                case "dimensions":
                    stream.size = value
        elif not line.startswith("#"):
            fields = [part.strip() for part in line.split(",")]
            stream = found[int(fields[0])]
            stream.seconds.append(int(fields[2]) * units[int(fields[0])])
            stream.digests.append(fields[5])
    return sorted((found[number] for number in sorted(found)), key=lambda stream: stream.kind != "video")


@dataclass
class Listed:
    """A media playlist as text says it."""

    text: str
    names: list[str]
    seconds: list[float]
    inits: list[str]

    def number(self, tag: str) -> int:
        found = re.search(rf"^#EXT-X-{tag}:(\d+)$", self.text, re.M)
        assert found, tag
        return int(found[1])


def listed(path: Path) -> Listed:
    text = path.read_text()
    return Listed(
        text=text,
        names=[line for line in text.splitlines() if line and not line.startswith("#")],
        seconds=[float(value) for value in re.findall(r"^#EXTINF:([\d.]+),$", text, re.M)],
        inits=re.findall(r'^#EXT-X-MAP:URI="([^"]+)"$', text, re.M),
    )


def pictures_of(folder: Path, playlist: str) -> list[list[tuple[Fraction, bool]]]:
    """For each segment, opened alone: (time in seconds, key frame) of each of its packets, in order."""
    found = listed(folder / playlist)
    init = (folder / found.inits[0]).read_bytes() if found.inits else b""
    segments: list[list[tuple[Fraction, bool]]] = []
    for name in found.names:
        alone = folder.parent / f"alone-{name}"
        alone.write_bytes(init + (folder / name).read_bytes())
        with av.open(str(alone)) as container:
            stream = container.streams.video[0]
            unit = stream.time_base or Fraction(1)
            packets = [(p.pts * unit, p.is_keyframe) for p in container.demux(stream) if p.pts is not None]
        with av.open(str(alone)) as container:
            assert sum(1 for _ in container.decode(video=0)) == len(packets), "a segment needs another one"
        segments.append(packets)
    return segments


def parts_of(folder: Path, playlist: str, *, decode: bool = True) -> list[list[Fraction]]:
    """Times of the listed frames between discontinuities, as of a player that comes now and takes each part anew."""
    found = listed(folder / playlist)
    times = []
    for number, part in enumerate(
        re.split(r"^#EXT-X-DISCONTINUITY\n", found.text.removesuffix("#EXT-X-ENDLIST\n"), flags=re.M)
    ):
        copy = folder.parent / f"part-{number}"
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        head = "" if number == 0 else "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:1\n"
        if found.inits and "#EXT-X-MAP" not in part:
            head += f'#EXT-X-MAP:URI="{found.inits[0]}"\n'
        (copy / playlist).write_text(f"{head}{part}#EXT-X-ENDLIST\n")
        (video,) = play(copy / playlist, decode=decode)
        times.append(sorted(video.seconds))
    return times
