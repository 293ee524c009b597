"""The time of a job over wraps, jumps and returns of its input: packets made by hand."""

from __future__ import annotations

from fractions import Fraction

import av
from av.packet import Packet
from av.stream import Stream
from hypothesis import given
from hypothesis import strategies as st

from dataplane.operators.timeline import BACK, FORWARD, RESTARTED, RETURNED, Timeline

WRAP = 1 << 33
SECOND = 90_000
FRAME = 3600


def packet(
    dts: int, pts: int | None = None, duration: int = FRAME, base: Fraction = Fraction(1, SECOND)
) -> Packet[Stream]:
    made: Packet[Stream] = av.Packet(8)
    made.dts, made.pts, made.duration, made.time_base = dts, dts if pts is None else pts, duration, base
    return made


@given(st.lists(st.tuples(st.integers(1, 9 * SECOND), st.integers(0, SECOND)), max_size=30), st.integers(0, WRAP - 1))
def test_stamps_are_unwrapped_and_their_wire_value_can_be_had_back(moves: list[tuple[int, int]], start: int) -> None:
    timeline = Timeline(True)
    true = start
    for step, delay in [(0, 0), *moves]:
        true += step
        given_ = packet(true % WRAP, (true + delay) % WRAP)
        segment = timeline.place(given_, "video", wraps=True)
        assert segment is not None
        assert (given_.dts, given_.pts) == (true, true + delay)
        assert given_.pts is not None
        assert given_.pts - segment.offset(given_.pts) == (true + delay) % WRAP
    assert timeline.jumped_back == 0


def test_two_wraps_and_a_half_at_nine_seconds_a_frame() -> None:
    """The correction of libavformat itself holds for the first wrap only."""
    timeline = Timeline(True)
    offsets = []
    for true in range(0, 5 * WRAP // 2, 9 * SECOND):
        placed = packet(true % WRAP)
        segment = timeline.place(placed, "video", wraps=True)
        assert placed.pts == true
        assert segment is not None
        if segment.offset(true) not in offsets:
            offsets.append(segment.offset(true))
    assert offsets == [0, WRAP, 2 * WRAP]


def test_reordered_pictures_on_both_sides_of_the_wrap() -> None:
    timeline = Timeline(True)
    dts = [WRAP - 2 * FRAME, WRAP - FRAME, 0, FRAME]
    pts = [WRAP, WRAP + 3 * FRAME, WRAP + FRAME, WRAP + 2 * FRAME]  # as they are shown: 0 3 1 2
    for decoded, shown in zip(dts, pts, strict=True):
        placed = packet(decoded, shown % WRAP)
        timeline.place(placed, "video", wraps=True)
        assert placed.pts == shown


def test_jumps_move_what_follows_behind_what_was_and_offsets_say_by_how_much() -> None:
    timeline = Timeline(True)
    shown: list[int] = []
    found = []
    for first in (100 * SECOND, 20 * SECOND, 5000 * SECOND):
        for number in range(5):
            own = first + number * FRAME
            placed = packet(own)
            segment = timeline.place(placed, "video")
            assert segment is not None
            assert placed.pts is not None
            assert placed.pts - segment.offset(placed.pts) == own
            shown.append(placed.pts)
            if number == 0:
                found.append(segment.reason)
    assert shown == [100 * SECOND + number * FRAME for number in range(15)]
    assert found == ["", BACK, FORWARD]


def test_a_gap_is_no_jump() -> None:
    timeline = Timeline(True)
    for own in (0, 9 * SECOND, 18 * SECOND):
        placed = packet(own)
        timeline.place(placed, "video")
        assert placed.pts == own


def test_sound_stays_in_step_over_a_hundred_jumps_though_it_is_longer_than_the_picture() -> None:
    """Each piece: 25 frames (1 s) of picture, 51 packets (1.088 s) of sound, that begin together."""
    timeline = Timeline(True)
    frame, grain = FRAME, 1920
    sound_end = 0
    for _ in range(100):
        pieces = sorted([(n * frame, "video") for n in range(25)] + [(n * grain, "audio") for n in range(51)])
        for own, stream in pieces:
            placed = packet(own, duration=frame if stream == "video" else grain)
            segment = timeline.place(placed, stream, leads=stream == "video")
            if stream == "audio" and segment is not None:
                assert placed.pts is not None
                assert placed.pts >= sound_end - grain // 2
                sound_end = placed.pts + grain
                sound_shift = placed.pts - own
            elif stream == "video":
                assert placed.pts is not None
                shift = placed.pts - own
        assert sound_shift == shift


def test_after_a_return_a_source_that_went_on_keeps_its_times_and_one_that_began_anew_is_moved() -> None:
    timeline = Timeline(True, live=True, start=Fraction(0))
    timeline.place(packet(0), "video")
    timeline.connect()
    went_on = packet(3 * SECOND)
    segment = timeline.place(went_on, "video")
    assert segment is not None
    assert (went_on.pts, segment.reason, segment.offset(3 * SECOND)) == (3 * SECOND, RETURNED, 0)
    timeline.connect()
    anew = packet(7)
    segment = timeline.place(anew, "video")
    assert segment is not None
    assert anew.pts == 3 * SECOND + FRAME
    assert anew.pts - segment.offset(anew.pts) == 7


def test_a_source_that_counts_in_other_ticks_after_its_return_is_brought_back() -> None:
    timeline = Timeline(True, live=True, start=Fraction(0), bases={"video": Fraction(1, SECOND)})
    timeline.place(packet(0), "video")
    timeline.connect()
    placed = packet(1000, base=Fraction(1, 1000), duration=40)
    timeline.place(placed, "video")
    assert placed.pts == SECOND
    assert placed.duration == FRAME


def test_a_live_source_that_was_started_anew_since_it_was_looked_at_begins_where_it_was_promised() -> None:
    timeline = Timeline(True, live=True, start=Fraction(1000))
    placed = packet(5 * SECOND)
    segment = timeline.place(placed, "video", wraps=True)
    assert segment is not None
    assert placed.pts == 1000 * SECOND
    assert placed.pts - segment.offset(placed.pts) == 5 * SECOND


def test_a_wrap_between_looking_and_reading_is_a_wrap() -> None:
    timeline = Timeline(True, live=True, start=Fraction(WRAP - SECOND, SECOND))
    placed = packet(SECOND)
    segment = timeline.place(placed, "video", wraps=True)
    assert segment is not None
    assert placed.pts == WRAP + SECOND
    assert segment.offset(placed.pts) == WRAP


@given(st.integers(0, WRAP - 1), st.integers(0, 10 * WRAP), st.integers(0, 200 * SECOND))
def test_who_continues_begins_behind_what_there_was(wire: int, end: int, sound_later: int) -> None:
    """Whatever the sender's clock shows by now, picture and sound stay as far apart as it says."""
    timeline = Timeline(True, Fraction(7, 5), live=True)
    timeline.continue_behind(Fraction(end, SECOND))

    picture, sound = packet(wire), packet((wire + sound_later) % WRAP)
    segment = timeline.place(picture, "video", wraps=True)
    timeline.place(sound, 0, wraps=True, leads=False)

    assert picture.dts == end
    assert segment is not None
    assert segment.reason == RESTARTED
    assert end - segment.offset(end) == wire
    if sound_later < 60 * SECOND:
        assert sound.dts == end + sound_later
