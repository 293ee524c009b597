"""Coming into the middle of a live stream: what was before our time is neither delivered nor lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import av
import pytest

from dataplane.operators.addresses import Input
from dataplane.operators.decoding import FrameReader, Lost, Picture, Sound
from dataplane.operators.feed import Connection, Item, read_to_the_end
from dataplane.operators.reading import describe
from dataplane.operators.timeline import Timeline
from dataplane.operators.tracks import tracks_of
from tests.operators.media import make

GOP, JOINED_AT = 20, 5


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """A stream with a key frame every GOP frames."""
    options = {"g": str(GOP), "bf": "0"}
    return make(tmp_path / "x.ts", count=3 * GOP, size=(64, 48), audio="aac", options=options)


def middle(stream: Path) -> list[Item]:
    """All of it but the first JOINED_AT pictures, as a live connection gives it."""
    source = Input(str(stream))
    with av.open(str(stream)) as container:
        found = replace(describe(source, container), live=True)
        tracks = tracks_of(source, container, found, 0, found.audio)
        connection, *packets = read_to_the_end(container, found, tracks)
    pictures = [n for n, packet in enumerate(packets) if isinstance(packet, av.Packet) and packet.stream_index == 0]
    return [connection, *packets[pictures[JOINED_AT] :]]


def test_pictures_and_sound_begin_with_a_key_frame_and_nothing_is_lost(stream: Path) -> None:
    reader = FrameReader(middle(stream), Timeline(True, live=True), lambda _: None, live=True)

    events = [event for event in reader if isinstance(event, Picture | Sound | Lost)]

    assert isinstance(events[0], Picture)
    assert sum(isinstance(event, Picture) for event in events) == 2 * GOP
    assert any(isinstance(event, Sound) for event in events)
    assert not any(isinstance(event, Lost) for event in events)


def test_after_an_outage_as_well(stream: Path) -> None:
    first = middle(stream)
    connection, *rest = middle(stream)
    assert isinstance(connection, Connection)
    again = replace(connection, outage_seconds=3.0)
    reader = FrameReader(
        [*first[: len(first) // 2], again, *rest], Timeline(True, live=True), lambda _: None, live=True
    )

    events = list(reader)
    place = events.index(again)
    before, after = events[:place], [e for e in events[place + 1 :] if isinstance(e, Picture | Sound | Lost)]

    assert isinstance(after[0], Picture)
    assert after[0].epoch is not None
    assert after[0].epoch.reason == "the source is back after 3.0 s"
    assert not any(isinstance(event, Lost) for event in after)
    last = max(e.frame.pts or 0 for e in before if isinstance(e, Picture))
    assert (after[0].frame.pts or 0) > last
