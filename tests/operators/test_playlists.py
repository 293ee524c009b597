"""HLS playlists as text, and read back."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.operators.playlists import (
    Entry,
    MediaPlaylist,
    Sound,
    Variant,
    attributes,
    master_playlist,
    read_media_playlist,
    target_of,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)
MOMENTS = st.integers(0, 10**13).map(lambda n: datetime(2020, 1, 1, tzinfo=UTC) + timedelta(milliseconds=n))
ENTRIES = st.builds(
    Entry,
    uri=NAMES,
    seconds=st.integers(0, 60_000_000).map(lambda n: n / 1e6),
    discontinuity=st.booleans(),
    date=st.none() | MOMENTS,
)


@given(
    st.lists(ENTRIES, max_size=6),
    st.none() | NAMES,
    st.integers(1, 60),
    st.integers(0, 10**9),
    st.integers(0, 99),
    st.booleans(),
    st.booleans(),
)
def test_what_is_written_is_read_back(
    entries: list[Entry], init: str | None, target: int, first: int, before: int, event: bool, ended: bool
) -> None:
    with_init = tuple(Entry(e.uri, e.seconds, init, e.discontinuity, e.date) for e in entries)
    playlist = MediaPlaylist(target, with_init, first, before, event, ended)

    assert read_media_playlist(playlist.text()) == playlist


@given(
    st.text() | st.lists(st.sampled_from(["#EXTM3U", "#EXTINF:1,", "#EXTINF:x", "a.ts", "#EXT-X-MAP:"])).map("\n".join)
)
def test_anything_else_is_refused_by_one_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        read_media_playlist(text)


def test_a_playlist_to_the_letter() -> None:
    """RFC 8216: the order in which a player needs the tags."""
    date = datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC)
    entries = (Entry("a.m4s", 4.0, "i.mp4"), Entry("b.m4s", 3.96, "j.mp4", discontinuity=True, date=date))

    assert MediaPlaylist(4, entries, 7, 2, ended=True).text().splitlines() == [
        "#EXTM3U",
        "#EXT-X-VERSION:7",
        "#EXT-X-TARGETDURATION:4",
        "#EXT-X-MEDIA-SEQUENCE:7",
        "#EXT-X-DISCONTINUITY-SEQUENCE:2",
        "#EXT-X-INDEPENDENT-SEGMENTS",
        '#EXT-X-MAP:URI="i.mp4"',
        "#EXTINF:4.000000,",
        "a.m4s",
        "#EXT-X-DISCONTINUITY",
        '#EXT-X-MAP:URI="j.mp4"',
        "#EXT-X-PROGRAM-DATE-TIME:2026-03-01T12:00:00.500+00:00",
        "#EXTINF:3.960000,",
        "b.m4s",
        "#EXT-X-ENDLIST",
    ]


@pytest.mark.parametrize(("seconds", "target"), [(4, 4), (0.5, 1), (2.002, 3), (5.9, 6)])
def test_the_target_is_whole_and_no_segment_rounds_above_it(seconds: float, target: int) -> None:
    assert target_of(seconds) == target


def variant(**changes: object) -> Variant:
    usual: dict[str, object] = {
        "uri": "v.m3u8",
        "peak_bits_per_second": 1_000_000,
        "average_bits_per_second": 900_000,
        "codec": "avc1.64001f",
        "width": 1280,
        "height": 720,
        "frames_per_second": 30000 / 1001,
        "transfer": None,
    }
    return Variant(**(usual | changes))  # type: ignore[arg-type]


def test_a_variant_needs_the_bits_of_its_sound_too() -> None:
    sounds = [
        Sound("a.m3u8", "deu 1", "deu", 2, "mp4a.40.2", 130_000, 128_000),
        Sound("b.m3u8", "eng 2", "eng", 6, "ec-3", 640_000, 640_000),
    ]

    text = master_playlist([variant()], sounds)

    assert (
        "#EXT-X-STREAM-INF:BANDWIDTH=1640000,AVERAGE-BANDWIDTH=1540000,"
        'CODECS="avc1.64001f,mp4a.40.2,ec-3",RESOLUTION=1280x720,FRAME-RATE=29.970,AUDIO="audio"\nv.m3u8\n' in text
    )
    assert text.count("DEFAULT=YES") == 1
    assert 'NAME="deu 1",LANGUAGE="deu",DEFAULT=YES,AUTOSELECT=YES,CHANNELS="2",URI="a.m3u8"' in text


@pytest.mark.parametrize(("transfer", "range_"), [(16, "PQ"), (18, "HLG"), (1, "SDR")])
def test_the_range_follows_the_transfer_characteristic(transfer: int, range_: str) -> None:
    assert f",VIDEO-RANGE={range_}\n" in master_playlist([variant(transfer=transfer)], [])


def test_what_is_not_known_is_not_said() -> None:
    text = master_playlist([variant(codec=None, width=None, frames_per_second=None)], [])

    assert "#EXT-X-STREAM-INF:BANDWIDTH=1000000,AVERAGE-BANDWIDTH=900000\n" in text


def test_attributes_may_hold_commas() -> None:
    assert attributes('URI="a,b.mp4",BYTERANGE="1@0",X=2') == {"URI": "a,b.mp4", "BYTERANGE": "1@0", "X": "2"}
