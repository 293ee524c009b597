"""mux: a file from coded packets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
from dataplane.operators.containers import loses_aspect
from dataplane.operators.growing import GrowingFile, Track, growing_file, rule_of
from dataplane.operators.journal import Record, RecordKind
from dataplane.operators.mux_parameters import MuxParameters, check
from dataplane.operators.mux_track import MuxTrack
from dataplane.operators.packets import before_key_frame, move_behind, move_by, packet_from, packet_of
from dataplane.operators.part_files import PartFiles, inode_of
from dataplane.operators.pieces import Part, Pieces, Waiting
from dataplane.operators.places import output_failed, real_path
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.media import AudioFormat, CodecParameters, PayloadKind, PortFormat

if TYPE_CHECKING:
    from dataplane._ring import ReadLease


KEEPS_TIMES = frozenset({"mpegts"})
"""Containers that keep the source's own times; in the others a file starts at 0."""
MAY_REPEAT_TIMES = frozenset({"matroska", "webm"})


class Mux(Operator):
    """Writes packets into a file, under a temporary name until it is complete.

    A packet is acknowledged once it is in the journal; the file grows in pieces, and the journal is emptied behind it.
    """

    op = "mux"
    Params = MuxParameters
    summary = "Writes encoded video, and the source's audio, into a file"
    sink = True
    max_inputs = None
    takes_audio = True
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute"}

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self._files: PartFiles | None = None
        self._file: GrowingFile | None = None
        self._tracks: list[MuxTrack] = []
        self._places: dict[tuple[str, int], int] = {}  # (edge, stream index) -> index of the track
        self._sequences: dict[str, int] = {}  # of the last payload of each edge that is in the journal
        self._replaying = False
        self._told: frozenset[int | None] = frozenset()  # losses that were reported before
        self._complete: tuple[str, int] | None = None  # the name and inode of the whole file
        self._done = False  # it has the name that was asked for, and was reported

    # -- before anything runs --------------------------------------------------------------------------------------

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """Fragment. The coded packet is copied into the journal, which is why its slot is free at once."""
        return CommitContract(
            kind=CommitKind.FRAGMENT,
            copies_per_frame=2,
            copies_reason="of the coded packet, not the picture: into the journal, and for its piece of the file",
        )

    @classmethod
    def restart(cls, params: Parameters, request: SourceRequest = NO_WISHES) -> Restart:
        """Another instance goes on behind the last whole piece of the file, with what the journal has."""
        return Restart(after_death=True, migration=True, why="the file goes on behind its last whole piece")

    @classmethod
    def output(cls, params: Parameters, inputs: Sequence[PortFormat]) -> tuple[OutputPort, ...]:
        """No ports. Raises BadParameters when the file or its streams are not possible."""
        check(cast(MuxParameters, params), inputs)
        return ()

    # -- in the worker ---------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Know the streams. Files are made with the first payload: until then they may be another instance's."""
        params = cast(MuxParameters, self.params)
        self._container = params.container
        for edge, form in context.inputs.items():
            streams = len(form.streams) if isinstance(form, AudioFormat) else 1
            media: Literal["video", "audio"] = "audio" if isinstance(form, AudioFormat) else "video"
            for index in range(streams):
                self._places[edge, index] = len(self._tracks)
                self._tracks.append(MuxTrack(edge, f"{edge}#{index}", media))
        rule = rule_of(self._container, params.style)
        self._pieces = Pieces([track.media for track in self._tracks], rule)

    def continue_from(self, resume: Resume, context: Context) -> None:
        """Take over the files of the instance before. Raises OutputFailed."""
        self._told = frozenset(loss.source_index for loss in resume.lost)
        if resume.state is None:
            return  # nothing had come
        self._files = PartFiles(self._final, Path(str(resume.state["temporary"])))
        self._done = "done" in resume.state
        if self._done:
            self._count(cast(int, resume.state["done"]), context)
            self._files.remove()
            return
        try:
            self._recover(self._files, context)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise self._failed(error) from None

    def process(self, frame: ReadLease, edge: str, context: Context) -> None:
        """Keep one packet in the journal; when a piece of the file is complete by it, write that."""
        descriptor = frame.descriptor
        frame.launch()
        place = self._places.get((edge, descriptor.stream_index))
        kind = descriptor.payload_kind
        if place is None or kind == PayloadKind.FRAME_LOST or frame.sequence <= self._sequences.get(edge, -1):
            frame.release()
            return
        track = self._tracks[place]
        if kind != PayloadKind.CODEC_PARAMETERS and track.said is None:
            if track.media == "video" and descriptor.source_index not in self._told:
                context.lost(descriptor.source_index, descriptor.pts, "nothing had described its codec")
            frame.release()
            return
        try:
            number = self._begun(context).journal.take(frame, descriptor, place)
        except OSError as error:
            raise self._failed(error) from None
        self._sequences[edge] = frame.sequence
        if kind == PayloadKind.CODEC_PARAMETERS:
            self._learn(track, CodecParameters.model_validate_json(frame.array.tobytes()), context)
        else:
            self._accept(place, number, packet_of(frame, descriptor), context)
        frame.release()
        self._advance(context)

    def ended(self, edge: str, context: Context) -> None:
        """One edge has ended: a stream that was not described by now never will be."""
        for track, queue in zip(self._tracks, self._pieces.queues, strict=True):
            if track.edge == edge:
                queue.ended = True
        self._advance(context)

    def flush(self, context: Context) -> None:
        """Complete the file and give it its name. Raises OutputFailed."""
        params = cast(MuxParameters, self.params)
        if self._done:
            return
        for queue in self._pieces.queues:
            queue.ended = True
        self._advance(context)
        by_edge = {track.edge: track.packets for track in self._tracks if track.media == "video"}
        frames = sum(by_edge.values())
        if self._file is None or self._files is None or not frames:
            raise OutputFailed("no frame arrived: nothing is written", file=params.path)
        try:
            for parts in self._pieces.rest():
                self._write(parts)
            self._give_name(self._file, self._files)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise self._failed(error) from None
        context.finished_output(params.path, frames, by_edge)
        context.checkpoint({"temporary": str(self._files.main), "done": frames})
        self._done = True
        self._files.remove()

    def abort(self) -> None:
        """Remove the unfinished file."""
        if self._files is not None:
            self._files.remove()

    def close(self) -> None:
        """Let go of the files: another instance may continue them."""
        if self._files is not None:
            self._files.close()

    # -- internals -------------------------------------------------------------------------------------------------

    @property
    def _final(self) -> Path:
        return real_path(cast(MuxParameters, self.params).path)

    def _begun(self, context: Context) -> PartFiles:
        """The files; made with the first payload."""
        if self._files is None:
            files = PartFiles.new(self._final)
            context.checkpoint({"temporary": str(files.main)})
            self._files = files
            files.create(context.scratch)
        return self._files

    def _warn(self, message: str, context: Context) -> None:
        if not self._replaying:
            context.warn(message)

    def _count(self, frames: int, context: Context) -> None:
        for _ in range(frames):
            context.count_frame()

    def _learn(self, track: MuxTrack, said: CodecParameters, context: Context) -> None:
        """A stream's codec parameters: before its first packet, and again when its producer was restarted."""
        if track.said is None or self._file is None:
            track.said = track.now = said
        elif track.now is not None and said.extradata_hex != track.now.extradata_hex:
            track.now = said.model_copy(update={"time_base": track.said.time_base})
            if self._container != "mpegts":
                self._warn(track.changed(), context)

    def _accept(self, place: int, number: int, packet: Packet[Stream], context: Context) -> None:
        """One packet that is in the journal."""
        track = self._tracks[place]
        if packet.dts is None:
            packet.dts = packet.pts
        if packet.dts is None or track.now is None:
            self._warn(f"{track.name}: packets without a time are left out", context)
            return
        unit = packet.time_base
        if context.start_seconds and self._container not in KEEPS_TIMES:
            move_by(packet, -round(context.start_seconds / unit))
        lowest = None if track.last_dts is None else track.last_dts + (self._container not in MAY_REPEAT_TIMES)
        if lowest is not None and move_behind(packet, lowest):
            what = "sound" if track.media == "audio" else "picture"
            self._warn(
                f"{track.name}: times of the {what} that do not rise were moved behind their predecessors", context
            )
        track.last_dts = packet.dts
        track.packets += 1
        if track.media == "video":
            context.count_frame()
        seconds = packet.dts * unit.numerator / unit.denominator
        self._pieces.add(place, Waiting(number, packet, track.now, seconds))

    def _advance(self, context: Context) -> None:
        """Write what is complete, once every stream is described, or has ended without being so."""
        try:
            if self._file is None:
                self._start_when_known(context)
            if self._file is not None:
                for parts in self._pieces.ready():
                    self._write(parts)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise self._failed(error) from None

    def _start_when_known(self, context: Context) -> None:
        queues = self._pieces.queues
        if any(track.said is None and not queue.ended for track, queue in zip(self._tracks, queues, strict=True)):
            return
        if not any(track.media == "video" and track.said for track in self._tracks):
            return
        for track in self._tracks:
            if track.said is None:
                self._warn(f"{track.name}: it ended before it began, and is left out", context)
            elif loses_aspect(self._container, track.said):
                what = f"the sample aspect ratio is lost, {track.said.codec} in this container has none"
                self._warn(f"{track.name}: {what}", context)
        self._file = self._growing(None)

    def _growing(self, state: Mapping[str, Any] | None) -> GrowingFile:
        tracks = [Track(n, track.said) for n, track in enumerate(self._tracks) if track.said is not None]
        style = cast(MuxParameters, self.params).style
        return growing_file(self._container, self._final, style, tracks, state)

    def _write(self, parts: Sequence[Part]) -> None:
        """Append a piece to the file, and forget it in the journal."""
        if not parts:
            return
        assert self._file is not None
        assert self._files is not None
        for part in parts:
            track = self._tracks[part.track]
            track.written += len(part.packets)
            track.written_dts = part.packets[-1].packet.dts
        self._file.append(self._files.fd, [self._described(part) for part in parts])
        self._snapshot()

    def _described(self, part: Part) -> Part:
        """With other codec parameters than the file's before each key frame that has them."""
        said = self._tracks[part.track].said
        if self._container == "mpegts" or part.packets[0].said is said:
            return part  # a piece of a transport stream has a header of its own
        packets = [
            one._replace(packet=before_key_frame(one.packet, one.said)) if one.packet.is_keyframe else one
            for one in part.packets
        ]
        return replace(part, packets=packets)

    # -- the journal -----------------------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """Say in the journal what is written."""
        assert self._file is not None
        assert self._files is not None
        journal = self._files.journal
        tracks = []
        for track, queue in zip(self._tracks, self._pieces.queues, strict=True):
            first = queue.waiting[0] if queue.waiting else None
            tracks.append(track.state(first, journal.next_number))
        state = {
            "file": self._file.state(),
            "tracks": tracks,
            "sequences": self._sequences,
            "start": self._pieces.start_seconds,
            "complete": self._complete,
        }
        journal.snapshot(state, min(track.needed for track in self._tracks))

    def _recover(self, files: PartFiles, context: Context) -> None:
        """What the instance before had taken in, in the file and in the journal."""
        state, records = files.journal.recover()
        if state is not None:
            self._restore(state, context)
        if self._complete is not None:
            files.report(context.scratch)
            return
        if self._file is not None and inode_of(files.main) is None:
            params = cast(MuxParameters, self.params)
            raise OutputFailed("its temporary file is gone", file=params.path, mend="run it again")
        files.open(context.scratch)
        os.ftruncate(files.fd, self._file.size_bytes if self._file is not None else 0)
        self._replaying = True
        self._replay(records, context)
        self._replaying = False
        self._advance(context)

    def _restore(self, state: Mapping[str, Any], context: Context) -> None:
        for track, said in zip(self._tracks, state["tracks"], strict=True):
            track.restore(said)
            self._count(track.written if track.media == "video" else 0, context)
        self._sequences = dict(state["sequences"])
        self._pieces.begin_at(state["start"])
        self._complete = None if state["complete"] is None else (state["complete"][0], state["complete"][1])
        self._file = self._growing(state["file"])

    def _replay(self, records: Iterable[Record], context: Context) -> None:
        for record in records:
            track = self._tracks[record.track]
            self._sequences[track.edge] = max(self._sequences.get(track.edge, -1), record.sequence)
            if record.number < track.needed:
                continue
            if record.kind == RecordKind.PARAMETERS:
                self._learn(track, CodecParameters.model_validate_json(record.payload), context)
            elif record.kind == RecordKind.PACKET:
                self._accept(record.track, record.number, packet_from(record), context)

    def _give_name(self, file: GrowingFile, files: PartFiles) -> None:
        """Complete the file and rename it; what was done before a death is not done again."""
        if self._complete is None:
            whole = files.spare if file.complete(files.fd, files.spare) else files.main
            self._complete = str(whole), whole.stat().st_ino
            self._snapshot()
        name, inode = self._complete
        if inode_of(self._final) != inode:
            Path(name).replace(self._final)

    def _failed(self, error: Exception) -> OutputFailed:
        return output_failed(error, cast(MuxParameters, self.params).path)
