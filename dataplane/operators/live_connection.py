"""One connection to a live source: opening it, reading it, and knowing again what was read before."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Collection, Iterator

import av
from av.container import InputContainer
from av.packet import Packet
from av.stream import Stream

from dataplane.errors import BadMedia, WrongAddress
from dataplane.operators.addresses import Input
from dataplane.operators.reading import InputDescription, check_file, describe, open_input, reason_of

BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS = 0.1, 2.0
SHORTEST_ATTEMPT_SECONDS = 0.1
READ_ERRORS_IN_A_ROW = 100
REMEMBERED_PACKETS = 8192  # more than a minute of picture and sound


class _Left:
    """The seconds left of an attempt, as a number.

    PyAV asks for the timeout twice, for the header and again to look into the streams, and of MPEG-TS either may take
    the whole of it: a plain number would be waited for twice.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def __float__(self) -> float:
        return max(self._deadline - time.monotonic(), SHORTEST_ATTEMPT_SECONDS)


def open_live(source: Input, open_seconds: float, read_seconds: float) -> tuple[InputContainer, InputDescription]:
    """Open a source of which something is coming now, within that time altogether. Raises BadMedia."""
    container = open_input(source, _Left(open_seconds), read_seconds)
    try:
        return container, describe(source, container)
    except BaseException:
        container.close()
        raise


def wait_for_source(source: Input, patience_seconds: float) -> InputDescription:
    """Open a source that may not be there yet, see what is in it, and let go of it.

    Raises:
        BadMedia: it does not come within that time.
        WrongAddress: it never can.
    """
    if "://" not in source.readable:
        check_file(source.readable)
    deadline = time.monotonic() + patience_seconds
    back_off = BACK_OFF_SECONDS
    while True:
        left = deadline - time.monotonic()
        try:
            container, found = open_live(source, left, patience_seconds)
        except WrongAddress:
            raise
        except BadMedia as error:
            if time.monotonic() + back_off > deadline:
                words = f"{error.message}, within {patience_seconds:g} s"
                raise BadMedia(words, file=source.title, mend=error.mend) from None
        else:
            container.close()
            return found
        time.sleep(back_off)
        back_off = min(LONGEST_BACK_OFF_SECONDS, 2 * back_off)


class Reading:
    """Reads one open container. `ended` says in words why nothing more comes; None: that is how it should end."""

    def __init__(self, container: InputContainer, live: bool, wanted: Collection[int], patience_seconds: float) -> None:
        """`wanted` are the indices of the streams to read; `live`: it has no end of its own; `patience_seconds`: the
        read timeout that the container was opened with.
        """
        self._container = container
        self._wanted = [container.streams[index] for index in wanted]
        self._live = live
        self._packets = self._read()
        self._patience_seconds = patience_seconds
        self.last_data = time.monotonic()
        self.ended: str | None = "it ended"

    def next(self) -> Packet[Stream] | None:
        """The next packet; None when nothing more comes."""
        return next(self._packets, None)

    def close(self) -> None:
        """Close the container."""
        self._packets.close()  # type: ignore[attr-defined]  # a generator
        self._container.close()

    def _read(self) -> Iterator[Packet[Stream]]:
        """All packets; what cannot be understood is stepped over as long as something still comes."""
        failures = 0
        picture = time.monotonic()
        while True:
            demuxer = self._container.demux(self._wanted)
            try:
                while True:
                    asked = time.monotonic()
                    packet = next(demuxer, None)
                    if packet is None:
                        self.ended = "it said goodbye" if self._live else None
                        return
                    late = time.monotonic() - asked >= self._patience_seconds
                    if packet.size:
                        failures = 0
                        yield packet
                    if late:  # interrupted: this was what the demuxer still had
                        self.ended = f"no data for {self._patience_seconds:g} s"
                        return
                    self.last_data = time.monotonic()
                    if packet.stream.type == "video":
                        picture = self.last_data
                    elif self.last_data - picture > self._patience_seconds:
                        self.ended = f"no picture for {self._patience_seconds:g} s, only sound"
                        return
            except av.error.InvalidDataError:
                failures += 1
                if failures > READ_ERRORS_IN_A_ROW:
                    self.ended = "nothing of what comes can be understood"
                    return
            except av.FFmpegError as error:
                self.ended = self._in_words(error)
                return

    def _in_words(self, error: av.FFmpegError) -> str:
        if isinstance(error, av.error.ExitError):
            return f"no data for {self._patience_seconds:g} s"
        if error.errno == errno.EIO:
            return "it could not be read as fast as it came"
        return reason_of(error)


class Repetitions:
    """Knows the packets of a playlist again: opening one anew begins some segments back."""

    def __init__(self) -> None:
        self._order: deque[tuple[str, int | None, int]] = deque()
        self._known: set[tuple[str, int | None, int]] = set()
        self._catching_up = False

    def reopened(self, complete: bool) -> None:
        """A playlist that is complete begins at its very start: nothing is new before something known was seen."""
        self._catching_up = complete

    def has(self, packet: Packet[Stream]) -> bool:
        """Whether this packet was there before; what was not is remembered."""
        key = (packet.stream.type, packet.dts, packet.size)
        if key in self._known:
            self._catching_up = False
            return True
        if self._catching_up:
            return True
        if len(self._order) == REMEMBERED_PACKETS:
            self._known.discard(self._order.popleft())
        self._order.append(key)
        self._known.add(key)
        return False
