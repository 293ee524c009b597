"""package: a live or recorded HLS presentation, all renditions of a source in one folder."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import av
from av.packet import Packet
from av.stream import Stream

from dataplane.errors import OutputFailed
from dataplane.operators.base import (
    NO_WISHES,
    Context,
    Operator,
    OutputPort,
    Parameters,
    Restart,
    Resume,
    SourceRequest,
)
from dataplane.operators.boundaries import SharedBreaks, exact
from dataplane.operators.clock_readings import ClockReadings
from dataplane.operators.codec_strings import codec_string
from dataplane.operators.journal import Journal, Record, RecordKind
from dataplane.operators.package_parameters import SUFFIX, PackageParameters, check
from dataplane.operators.package_track import PackageTrack
from dataplane.operators.packets import packet_from, packet_of
from dataplane.operators.places import output_failed, real_path
from dataplane.operators.playlists import master_playlist
from dataplane.operators.presentation import PresentationFolder
from dataplane.operators.rendition import Rendition
from dataplane.operators.segments import NotInASegment, Segment, Segmenter
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.media import AudioFormat, CodecParameters, PayloadKind, PortFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease

_WAITS_FOR_SOUND = 3  # segments; after those the presentation begins without a sound that does not come
_STARTS_COMPARED = 64  # boundaries that are remembered, to see whether all pictures begin a segment there


class Package(Operator):
    """Cuts packets into segments and keeps the playlists that name them.

    A packet is acknowledged once it is in the journal, which is emptied behind the segments. What was decided is a
    function of the packets in their order, and of the few decisions in the journal: who continues comes to the same.
    """

    op = "package"
    Params = PackageParameters
    summary = "Writes encoded renditions of a source, and its audio, as HLS playlists with CMAF or MPEG-TS segments"
    sink = True
    max_inputs = None
    takes_audio = True
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute"}

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self._tracks: list[PackageTrack] = []
        self._places: dict[tuple[str, int], int] = {}  # (edge, stream index) -> index of the track
        self._breaks = SharedBreaks()
        self._folder: PresentationFolder | None = None
        self._journal: Journal | None = None  # while the folder is ours
        self._applied = -1  # number of the last record that was made use of
        self._sequences: dict[str, int] = {}  # of the last payload of each edge that is in the journal
        self._clock = ClockReadings(exact(cast(PackageParameters, params).segment_seconds), self._note_reading)
        self._starts: deque[tuple[int, Fraction]] = deque(maxlen=_STARTS_COMPARED)
        self._replaying = False
        self._told: frozenset[tuple[int | None, int | None]] = frozenset()  # losses that were reported before
        self._done = False  # ended and reported

    # -- before anything runs --------------------------------------------------------------------------------------

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """Fragment. The coded packet is copied into the journal, which is why its slot is free at once."""
        return CommitContract(
            kind=CommitKind.FRAGMENT,
            copies_per_frame=2,
            copies_reason="of the coded packet, not the picture: into the journal, and for its segment",
        )

    @classmethod
    def restart(cls, params: Parameters, request: SourceRequest = NO_WISHES) -> Restart:
        """Another instance goes on with the segments that are open, which the journal has."""
        return Restart(after_death=True, migration=True, why="the open segments go on; players notice nothing")

    @classmethod
    def output(cls, params: Parameters, inputs: Sequence[PortFormat]) -> tuple[OutputPort, ...]:
        """No ports. Raises BadParameters when the folder, the streams or the length of a segment are not possible."""
        check(cast(PackageParameters, params), inputs)
        return ()

    # -- in the worker ---------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Know the streams. The folder is taken with the first payload: until then another instance may have it."""
        params = cast(PackageParameters, self.params)
        path = real_path(params.folder)
        self._folder = PresentationFolder(path, params.folder)
        sounds = 0
        for edge, form in context.inputs.items():
            names = [f"video-{edge.partition('->')[0]}"]
            if isinstance(form, AudioFormat):
                names = [f"audio-{sounds + number}" for number in range(1, len(form.streams) + 1)]
                sounds += len(names)
            media: Literal["video", "audio"] = "audio" if isinstance(form, AudioFormat) else "video"
            for index, name in enumerate(names):
                self._places[edge, index] = len(self._tracks)
                self._tracks.append(self._track(path, edge, media, name))

    def continue_from(self, resume: Resume, context: Context) -> None:
        """Take over the folder of the instance before. Raises OutputFailed."""
        if resume.state is None:
            return  # nothing had come
        self._told = frozenset((loss.source_index, loss.pts) for loss in resume.lost)
        assert self._folder is not None
        journal = Journal(self._folder.journal)
        self._done = "done" in resume.state
        if self._done:
            self._count(cast(int, resume.state["done"]), context)
            journal.remove()
            return
        try:
            self._folder.take(again=True)
            state, records = journal.recover()
            self._journal = journal
            self._report_scratch(context)
            if state is None:
                self._take_up()
            else:
                self._restore(state, context)
                self._replay(records, context)
        except (OSError, ValueError) as error:
            raise output_failed(error, cast(PackageParameters, self.params).folder) from None

    def process(self, frame: ReadLease, edge: str, context: Context) -> None:
        """Add one packet to its segment; publish the segment that ended before it."""
        descriptor = frame.descriptor
        frame.launch()
        place = self._places.get((edge, descriptor.stream_index))
        kind = descriptor.payload_kind
        if place is None or kind == PayloadKind.FRAME_LOST or frame.sequence <= self._sequences.get(edge, -1):
            frame.release()
            return
        try:
            number = self._begun(context).take(frame, descriptor, place)
        except OSError as error:
            raise output_failed(error, cast(PackageParameters, self.params).folder) from None
        self._sequences[edge] = frame.sequence
        if kind == PayloadKind.CODEC_PARAMETERS:
            said = CodecParameters.model_validate_json(frame.array.tobytes())
            self._tracks[place].segmenter.describe(said)
            self._applied = number
        else:
            packet, source_index = packet_of(frame, descriptor), descriptor.source_index
            self._accept(self._tracks[place], packet, (number, descriptor.epoch, source_index), context)
        frame.release()

    def ended(self, edge: str, context: Context) -> None:
        """One edge has ended: its last segments are complete."""
        for track in self._tracks:
            if track.edge == edge:
                self._end(track, context)

    def flush(self, context: Context) -> None:
        """End every playlist. Raises OutputFailed."""
        params = cast(PackageParameters, self.params)
        if self._done:
            return
        for track in self._tracks:
            self._end(track, context)
        by_edge = {track.edge: track.frames for track in self._tracks if track.media == "video"}
        frames = sum(by_edge.values())
        if not frames or self._journal is None:
            raise OutputFailed("no frame arrived: nothing is written", file=params.folder)
        try:
            for track in self._tracks:
                if not track.rendition.published:
                    context.warn(f"{track.rendition.name}: it ended before it began, and is left out")
                else:
                    track.rendition.end()
            self._write_master()
        except OSError as error:
            raise output_failed(error, params.folder) from None
        context.finished_output(params.master, frames, by_edge)
        context.checkpoint({"done": frames})
        self._done = True
        self._journal.remove()

    def abort(self) -> None:
        """Remove what is not complete; what is stays, and its playlists stay open, to be continued."""
        if self._folder is not None and self._journal is not None:
            self._journal.remove()
            self._folder.discard([track.rendition for track in self._tracks])

    def close(self) -> None:
        """Let another one have the folder."""
        if self._journal is not None:
            self._journal.close()
        if self._folder is not None:
            self._folder.close()

    # -- internals -------------------------------------------------------------------------------------------------

    def _track(self, folder: Path, edge: str, media: Literal["video", "audio"], name: str) -> PackageTrack:
        params = cast(PackageParameters, self.params)
        rendition = Rendition(folder, name, SUFFIX[params.container], params.segment_seconds, params.window_segments)
        segmenter = Segmenter(name, media, params.container, params.segment_seconds, self._breaks)
        return PackageTrack(edge, media, segmenter, rendition)

    def _begun(self, context: Context) -> Journal:
        """The journal; the folder is taken with the first payload."""
        if self._journal is None:
            assert self._folder is not None
            self._folder.take(again=False)
            context.checkpoint({"begun": True})
            self._journal = Journal(self._folder.journal)
            self._journal.create()
            self._report_scratch(context)
            self._take_up()
        return self._journal

    def _report_scratch(self, context: Context) -> None:
        assert self._folder is not None
        renditions = [track.rendition.temporary for track in self._tracks]
        for temporary in (*self._folder.journal, self._folder.temporary, *renditions):
            context.scratch(str(temporary))

    def _take_up(self) -> None:
        """See what an earlier run left in the folder."""
        assert self._folder is not None
        existing = cast(PackageParameters, self.params).existing
        self._folder.take_up([track.rendition for track in self._tracks], go_on=existing == "continue")
        self._snapshot()

    def _accept(
        self, track: PackageTrack, packet: Packet[Stream], what: tuple[int, int, int | None], context: Context
    ) -> None:
        """One packet that is in the journal. `what`: its number there, epoch and source index."""
        self._applied, epoch, source_index = what
        name, what_is_it = track.rendition.name, "sound" if track.media == "audio" else "picture"
        if packet.dts is None:
            packet.dts = packet.pts
        if packet.pts is None or packet.dts is None:
            self._warn(f"{name}: {what_is_it} without a time is left out", context)
            return
        if track.segmenter.make_rise(packet):
            self._warn(f"{name}: times of the {what_is_it} that do not rise were moved", context)
        pts = packet.pts
        try:
            ended = track.segmenter.take(packet, epoch, self._applied)
        except NotInASegment as why:
            if track.media == "video" and (source_index, pts) not in self._told:
                context.lost(source_index, pts, str(why))
            return
        except (av.FFmpegError, ValueError) as error:
            raise self._not_made(track, error) from None
        track.frames += 1
        if track.media == "video":
            context.count_frame()
        if ended is not None:
            self._publish(track, ended, context)

    def _warn(self, message: str, context: Context) -> None:
        if not self._replaying:
            context.warn(message)

    def _count(self, frames: int, context: Context) -> None:
        for _ in range(frames):
            context.count_frame()

    def _not_made(self, track: PackageTrack, error: Exception) -> OutputFailed:
        """A segment is made in memory: it is no disk that refuses it."""
        reason = getattr(error, "strerror", None) or str(error)
        folder = cast(PackageParameters, self.params).folder
        return OutputFailed(f"a segment of {track.rendition.name} cannot be made ({reason})", file=folder)

    def _end(self, track: PackageTrack, context: Context) -> None:
        if track.ended:
            return
        track.ended = True
        try:
            last = track.segmenter.end()
        except (av.FFmpegError, ValueError) as error:
            raise self._not_made(track, error) from None
        if last is not None:
            self._publish(track, last, context)

    def _publish(self, track: PackageTrack, segment: Segment, context: Context) -> None:
        rendition, params = track.rendition, cast(PackageParameters, self.params)
        try:
            rendition.publish(segment, self._clock.date(segment) if params.window_segments else None)
            if track.codec is None:
                track.codec = codec_string(segment.header)
            self._write_master()
            if track.media == "video" and not segment.discontinuity:
                self._compare(segment, context)
            self._snapshot()
        except OSError as error:
            raise output_failed(error, params.folder) from None
        if rendition.longer_than_promised:
            self._warn(
                f"{rendition.name}: a segment is longer than {params.segment_seconds:g} s: frames came too late",
                context,
            )

    def _note_reading(self, said: list[Any]) -> None:
        assert self._journal is not None
        self._journal.note({"clock": said})

    def _compare(self, segment: Segment, context: Context) -> None:
        """Say once when renditions do not begin their segments at the same frames."""
        length = exact(cast(PackageParameters, self.params).segment_seconds)
        stretch = int(segment.start // length)
        others = [start for number, start in self._starts if number == stretch]
        if others and segment.start not in others:
            why = "some of them were dropped before"
            self._warn(f"the renditions' segments do not begin with the same frames: {why}", context)
        self._starts.append((stretch, segment.start))

    def _write_master(self) -> None:
        """Name the renditions, as soon as each has something to play, and again when bit rates rise."""
        assert self._folder is not None
        there = [track for track in self._tracks if not (track.ended and not track.frames)]
        pictures = [track for track in there if track.media == "video"]
        if not all(track.rendition.published for track in pictures):
            return
        silent = any(not track.rendition.published for track in there if track.media == "audio")
        if silent and max(track.rendition.published for track in pictures) < _WAITS_FOR_SOUND:
            return
        sounds = [track for track in self._tracks if track.media == "audio" and track.rendition.published]
        text = master_playlist(
            [track.variant() for track in pictures],
            [track.sound(number) for number, track in enumerate(sounds, 1)],
        )
        self._folder.write_master(text)

    # -- the journal -----------------------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """Say in the journal what is known behind the last record that was made use of."""
        assert self._journal is not None
        tracks = [track.state(self._applied + 1) for track in self._tracks]
        state = {
            "applied": self._applied,
            "tracks": tracks,
            "sequences": self._sequences,
            "breaks": self._breaks.state(),
            "clock": self._clock.state(),
            "starts": [[number, time.numerator, time.denominator] for number, time in self._starts],
        }
        self._journal.snapshot(state, min(track["segmenter"]["first"] for track in tracks))

    def _restore(self, state: Mapping[str, Any], context: Context) -> None:
        self._applied = state["applied"]
        for track, said in zip(self._tracks, state["tracks"], strict=True):
            track.restore(said)
            self._count(track.frames if track.media == "video" else 0, context)
        self._sequences = dict(state["sequences"])
        self._breaks.restore(state["breaks"])
        self._clock.add(state["clock"])
        self._starts.extend((number, Fraction(*time)) for number, *time in state["starts"])

    def _replay(self, records: Sequence[Record], context: Context) -> None:
        """What came after the snapshot, in the order in which it came; before that, what fills the open segments."""
        self._replaying = True
        applied, firsts = self._applied, [track.segmenter.first for track in self._tracks]
        notes = [json.loads(r.payload) for r in records if r.kind == RecordKind.NOTE and r.number > applied]
        self._clock.add(note["clock"] for note in notes)
        for record in records:
            if record.kind == RecordKind.NOTE:
                continue
            track = self._tracks[record.track]
            self._sequences[track.edge] = max(self._sequences.get(track.edge, -1), record.sequence)
            if record.number <= applied:
                if record.number >= firsts[record.track] and record.kind == RecordKind.PACKET:
                    track.segmenter.carry(packet_from(record))
            elif record.kind == RecordKind.PARAMETERS:
                track.segmenter.describe(CodecParameters.model_validate_json(record.payload))
                self._applied = record.number
            else:
                what = (record.number, record.epoch, record.source_index)
                self._accept(track, packet_from(record), what, context)
        self._replaying = False
