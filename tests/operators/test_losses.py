"""Lost frames are reported, but not without a bound; datagrams that the kernel drops are seen."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dataplane.operators import datagram_losses
from dataplane.operators.datagram_losses import DatagramLosses, dropped_datagrams, small_buffer_warning
from dataplane.operators.losses import BURST, PER_SECOND, LossReport


class Sink:
    def __init__(self) -> None:
        self.entries: list[tuple[int | None, int | None, str]] = []
        self.now = 0.0

    def __call__(self, source_index: int | None, pts: int | None, reason: str) -> None:
        self.entries.append((source_index, pts, reason))


def test_of_files_every_lost_frame_is_reported() -> None:
    sink = Sink()
    report = LossReport(sink, bounded=False)
    for pts in range(5000):
        report.add(pts, pts, "gone")
    assert [pts for _, pts, _ in sink.entries] == list(range(5000))


def test_of_live_sources_a_flood_becomes_a_number() -> None:
    sink = Sink()
    report = LossReport(sink, bounded=True, clock=lambda: sink.now)
    for pts in range(5000):
        report.add(None, pts, "gone")
    assert len(sink.entries) == BURST
    report.add(None, None, "too slow", count=300)
    report.flush()
    assert sink.entries[BURST:] == [
        (None, None, f"gone ({5000 - BURST} frames)"),
        (None, None, "too slow (300 frames)"),
    ]


def test_the_bound_holds_for_hours() -> None:
    sink = Sink()
    report = LossReport(sink, bounded=True, clock=lambda: sink.now)
    for second in range(3600):
        sink.now = float(second)
        report.add(None, None, "gone", count=50)
    report.flush()
    assert len(sink.entries) < BURST + 2 * (PER_SECOND + 1) * 3600
    counted = sum(int(why.split("(")[1].split()[0]) if "(" in why else 1 for _, _, why in sink.entries)
    assert counted == 3600 * 50  # none is forgotten


def test_datagrams_that_do_not_fit_are_counted() -> None:
    before = dropped_datagrams()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as small,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out,
    ):
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        small.bind(("127.0.0.1", 0))
        small.settimeout(0.0)
        for _ in range(200):
            out.sendto(bytes(1316), small.getsockname())
        dropped = dropped_datagrams() - before
        read = 0
        try:
            while small.recv(2000):
                read += 1
        except BlockingIOError:
            pass
    assert dropped == 200 - read > 0


def test_new_losses_are_told_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagram_losses, "EVERY_SECONDS", 0.0)
    counts = iter(range(1000))
    monkeypatch.setattr(datagram_losses, "dropped_datagrams", lambda: next(counts))
    losses = DatagramLosses()
    told = []
    for _ in range(1000):
        if (words := losses.news()) is not None:
            told.append(int(words.split()[0]))
    assert told == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_a_small_receive_buffer_is_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit = tmp_path / "rmem_max"
    monkeypatch.setattr(datagram_losses, "_LIMIT", str(limit))
    assert small_buffer_warning() is None  # not known
    limit.write_text("212992\n")
    assert "net.core.rmem_max" in (small_buffer_warning() or "")
    limit.write_text("8388608\n")
    assert small_buffer_warning() is None
