"""decode: frames, and coded audio, from a file, a URL or a generated picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, cast

from av.video.frame import VideoFrame

from dataplane._ring import Descriptor
from dataplane.errors import BadMedia, Stopped
from dataplane.operators import anchors
from dataplane.operators.addresses import DATAGRAMS
from dataplane.operators.base import (
    NO_WISHES,
    Context,
    Operator,
    OutputPort,
    Parameters,
    Probe,
    Restart,
    Resume,
    SlotClass,
    SourceRequest,
)
from dataplane.operators.continuing import AlreadyOut, Notes
from dataplane.operators.datagram_losses import small_buffer_warning
from dataplane.operators.decoding import FrameReader, Lost, NewEpoch, Picture, Sound
from dataplane.operators.feed import Connection, Gone, Item, Said, moved, read_to_the_end
from dataplane.operators.formats import copy_to_slot, layout_of
from dataplane.operators.frames import DISCONTINUITY, KEY_FRAME, format_colors
from dataplane.operators.live_feed import LiveFeed
from dataplane.operators.losses import LossReport
from dataplane.operators.normalising import Normaliser
from dataplane.operators.pacing import Pacer
from dataplane.operators.reading import InputDescription, describe, open_input
from dataplane.operators.sound import AUDIO_SLOTS, describe_sound, publish_sound
from dataplane.operators.source_frames import color_of, time_bases, usual_duration, warn_of_what_is_ignored
from dataplane.operators.source_parameters import (
    DecodeParameters,
    frame_limit,
    look_into,
    may_be_live,
    patience_with,
    restart_of,
    source_of,
)
from dataplane.operators.timeline import BACK, FORWARD, Timeline
from dataplane.operators.tracks import Tracks, tracks_of
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.media import AudioFormat, PayloadKind, VideoFormat

__all__ = ["Decode", "DecodeParameters"]

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.stream import Stream

    from dataplane._ring import WriteLease
    from dataplane.operators.anchors import Anchor


MOST_SAMPLES_PASSED_OVER = 3_000_000_000  # luma; 3000 generated pictures of 1280x720, some 10 s
MOST_OUTAGES_SAID = 100  # warnings are kept as long as the job lives


class Decode(Operator):
    """Decodes video; audio is handed on coded.

    A slot is acquired, and the launch noted, when a packet is there and goes into the decoder: the hop's
    launch-to-signal time is that of the decoder, and has no waiting for the source in it. With frame threads a frame
    may be ready at once because its work was done while earlier ones were waited for.
    """

    op = "decode"
    Params = DecodeParameters
    summary = "Decodes a file, a live source or a generated picture; audio is handed on as it is"
    source = True
    max_inputs = 0
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute", "gpu": "decode", "vpu": "decode"}

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self._container: InputContainer | None = None
        self._feed: LiveFeed | None = None
        self._slot: WriteLease | None = None
        self._index = 0
        self._clock: int | None = None  # where the next frame is expected
        self._epoch = 0  # 0: the one that the run began with
        self._outages = 0
        self._gone: Gone | None = None
        self._pacer: Pacer | None = None
        self._notes = Notes()
        self._out = AlreadyOut()

    # -- before anything runs --------------------------------------------------------------------------------------

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """Keyframe: a restart decodes from the last key frame and drops what was published."""
        return CommitContract(
            kind=CommitKind.KEYFRAME,
            copies_per_frame=1,
            copies_reason="PyAV lets libavcodec decode into memory of its own only; the frame is copied to the slot",
        )

    @classmethod
    def restart(cls, params: Parameters, request: SourceRequest = NO_WISHES) -> Restart:
        """Files and generated pictures at any frame; live sources are connected to anew."""
        return restart_of(source_of(cast(DecodeParameters, params), request))

    @classmethod
    def probe(cls, params: Parameters, request: SourceRequest) -> Probe:
        """Open the input and say what comes out; a live source is waited for. Raises BadMedia."""
        wanted = cast(DecodeParameters, params)
        source = source_of(wanted, request)
        found = look_into(wanted, source)
        limit = frame_limit(wanted, request, source)
        frames = min(limit, found.frames or limit) if limit else found.frames
        rate = found.video.frames_per_second
        duration = found.duration_seconds
        if duration is None and frames and rate:
            duration = frames / rate
        video = OutputPort(
            name="video",
            format=found.video,
            slots=(SlotClass(found.video.bytes_per_frame, 2, shared_by_consumers=True),),
            why="1 being decoded + 1 ready; the decoder keeps its own pictures",
        )
        outputs = [video]
        if found.audio is not None:
            outputs.append(OutputPort(name="audio", format=found.audio, slots=AUDIO_SLOTS, why="coded packets"))
        small = small_buffer_warning() if source.kind in DATAGRAMS else None
        return Probe(
            input=source.title,
            outputs=tuple(outputs),
            start_seconds=found.start_seconds,
            duration_seconds=duration,
            frames=frames or None,
            live=found.live,
            warnings=(*found.warnings, small) if small else found.warnings,
            extra={"codec": found.codec, "pixel_format": found.libav_format},
        )

    # -- in the worker ---------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Open the input again, in the process that decodes it; a live one is waited for later. Raises BadMedia."""
        params = cast(DecodeParameters, self.params)
        self._source = source = source_of(params, context.source)
        self._title = source.title
        self._limit = frame_limit(params, context.source, source)
        self._context = context
        self._paced = params.pace == "realtime" if context.source.realtime is None else context.source.realtime
        live = may_be_live(source)
        self._losses = LossReport(context.lost, bounded=live)
        self._bases = time_bases(context.outputs.values())
        if live:
            self._feed = LiveFeed(source, patience_with(params, source), self._tracks_of, context.stopping)
            self._timeline = Timeline(True, Fraction(context.start_seconds), live=True, bases=self._bases)
            self._read(self._feed)
        else:
            self._open_file()

    def _open_file(self) -> None:
        self._container = open_input(self._source)
        self._found = describe(self._source, self._container)
        self._tracks = self._tracks_of(self._container, self._found)
        self._read_file()

    def _read_file(self, before: Sequence[Packet[Stream]] = (), ticks: int = 0) -> None:
        """From where its container is now, behind those packets; its times are moved by that many ticks."""
        assert self._container is not None
        start = Fraction(self._found.start_seconds)
        self._timeline = Timeline(self._tracks.jumps_possible, start, bases=self._bases)
        self._read(moved(read_to_the_end(self._container, self._found, self._tracks, before), ticks))

    def _read(self, items: Iterable[Item]) -> None:
        self._reader = FrameReader(items, self._timeline, self._begin_work, live=self._feed is not None)
        self._events = iter(self._reader)

    def continue_from(self, resume: Resume, context: Context) -> None:
        """Files: find the first frame that is not out. Live sources: begin a new epoch behind what is out."""
        self._notes = notes = Notes(resume.state)
        if self._feed is not None and notes.live is not False:
            self._go_on_live(resume)
            return
        self._out = out = AlreadyOut(resume, notes)
        self._losses = LossReport(out.without_reported(context.lost), bounded=self._feed is not None)
        self._epoch = out.video.last_epoch
        if self._source.generated and self._is_far(out.next_index):
            context.warn("the generated picture begins with its first one again, for it takes long to come to this one")
            self._read_file(ticks=out.next_index)
            self._index = out.next_index
        elif notes.anchor is not None:
            sought = self._feed is None and not self._source.generated and self._seek(notes.anchor)
            self._reader.begin_at(notes.anchor, by_number=not sought)
            self._index = notes.anchor.index

    def _is_far(self, index: int) -> bool:
        """Generated pictures can only be passed over by making them."""
        return index * self._found.video.width * self._found.video.height > MOST_SAMPLES_PASSED_OVER

    def _go_on_live(self, resume: Resume) -> None:
        published = resume.on("video")
        lost = [loss.source_index for loss in resume.lost if loss.source_index is not None]
        self._index = max([published.next_source_index, *(index + 1 for index in lost)])
        self._epoch = published.last_epoch
        video = self._context.outputs["video"].format if "video" in self._context.outputs else None
        if published.last_pts is not None and isinstance(video, VideoFormat):
            end = published.last_pts + usual_duration(video)
            self._timeline.continue_behind(end * video.time_base.fraction)

    def _seek(self, anchor: Anchor) -> bool:
        """Whether the input is read from shortly before that key frame; from its beginning otherwise."""
        container = cast("InputContainer", self._container)
        before = anchors.seek(container, self._tracks, anchor, self._out.heard, self._context.stopping)
        if before is None:
            container.close()
            self._open_file()
            return False
        self._read_file(before)
        return True

    def _tracks_of(self, container: InputContainer, found: InputDescription) -> Tracks:
        sound = self._context.outputs["audio"].format if "audio" in self._context.outputs else None
        threads = cast(DecodeParameters, self.params).threads
        return tracks_of(self._source, container, found, threads, sound if isinstance(sound, AudioFormat) else None)

    def step(self, context: Context) -> bool:
        """Publish one frame, and the audio before it. False at the end of the input or of the frames asked for."""
        if self._limit and max(self._index, self._out.next_index) >= self._limit:
            return False
        picture = self._next_picture(context)
        if picture is None:
            self._report_end(context)
            return False
        if self._index < self._out.next_index:
            self._times_of(picture.frame)
            self._index += 1
            return True  # another instance published it
        if picture.epoch is not None:
            self._begin_epoch(picture.epoch, context)
        self._publish(picture, self._free_slot(), context.warn)
        self._slot = None
        context.count_frame()
        if not self._notes.live:
            self._notes.frame_published(picture.anchor, self._index - 1, context)
        return True

    def flush(self, context: Context) -> None:
        """Give back the slot that no frame came for."""
        self._losses.flush()
        if self._slot is not None:
            self._slot.abandon()
            self._slot = None

    def close(self) -> None:
        """Close the input."""
        events = cast("Iterator[object]", self._events) if hasattr(self, "_events") else None
        if events is not None:
            events.close()  # type: ignore[attr-defined]  # a generator
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        if self._container is not None:
            self._container.close()
            self._container = None

    # -- what the reader brings --------------------------------------------------------------------------------------

    def _next_picture(self, context: Context) -> Picture | None:
        """The next frame; what comes before it is handed on or said."""
        for event in self._events:
            match event:
                case Picture():
                    return event
                case Sound():
                    self._pass_on(event, context)
                case Lost():
                    if not event.in_order or self._index >= self._out.next_index:
                        self._losses.add(self._index if event.in_order else None, event.pts, event.reason, event.count)
                    self._index += event.in_order
                case Connection():
                    self._connected(event, context)
                case Gone():
                    self._gone = event
                    context.warn(f"{self._title}: {event.reason}; it is waited for")
                    context.source_waits(True)
                case Said():
                    context.warn(event.message)
        return None

    def _pass_on(self, sound: Sound, context: Context) -> None:
        if not self._out.has_sound(sound.place, sound.packet):
            publish_sound(sound, context)
            if not self._notes.live:
                self._notes.sound_published(sound.place, sound.packet, context)

    def _connected(self, connection: Connection, context: Context) -> None:
        """The input is open: for the first time, or again."""
        self._gone = None
        if connection.outage_seconds is not None:
            self._outages += 1
            context.source_waits(False)
            if self._outages <= MOST_OUTAGES_SAID:
                words = f"outage {self._outages}: it was away for {connection.outage_seconds:.1f} s"
                context.warn(f"{self._title}: {words}")
            else:
                context.warn(f"{self._title}: it goes and returns all the time; its epochs tell when")
            return
        found = connection.description
        self._notes.say_live(found.live, context)
        promised = context.outputs["video"].format if "video" in context.outputs else found.video
        assert isinstance(promised, VideoFormat)
        self._found = found
        self._promised = promised
        self._layout = layout_of(promised)
        self._normaliser = Normaliser(found, promised, context.warn)
        self._colors = format_colors(promised)
        self._usual_duration = usual_duration(promised)
        if self._paced and not found.live:
            self._pacer = Pacer(context.stopping)
        describe_sound(connection.tracks.audio.values(), context)

    def _begin_work(self, seconds: float | None) -> None:
        """A packet is there and goes into the decoder: with a slot, and not before its time."""
        if self._index < self._out.next_index:  # to catch up with what another instance published
            if self._context.stopping.is_set():
                raise Stopped("stopped before the first frame that is not published")
            return
        if self._pacer is not None and seconds is not None:
            self._pacer.wait(seconds)
        self._free_slot().launch()

    def _free_slot(self) -> WriteLease:
        if self._slot is None:
            self._slot = self._context.acquire(self._layout.total_bytes)
        return self._slot

    def _begin_epoch(self, new: NewEpoch, context: Context) -> None:
        if new.reason in (BACK, FORWARD):
            context.warn(f"{new.reason}; what follows was moved behind what came before")
        self._epoch = context.begin_epoch(new.reason, new.pts_offset)

    # -- publishing --------------------------------------------------------------------------------------------------

    def _times_of(self, frame: VideoFrame) -> tuple[int, int, int]:
        """PTS, duration, and flags that say how good they are."""
        duration = frame.duration or self._usual_duration
        pts, flags = frame.pts, 0
        if pts is None:
            pts = self._clock if self._clock is not None else (frame.dts or 0)
            flags = DISCONTINUITY
        self._clock = pts + duration
        return pts, duration, flags

    def _publish(self, picture: Picture, slot: WriteLease, warn: Callable[[str], None]) -> None:
        frame = picture.frame
        size = self._layout.total_bytes
        pts, duration, flags = self._times_of(frame)
        if frame.key_frame:
            flags |= KEY_FRAME
        if picture.epoch is not None:
            flags |= DISCONTINUITY
        if self._index == 0:
            warn_of_what_is_ignored(frame, warn)
        copy_to_slot(self._normaliser.normalise(frame), self._layout, slot.array[:size])
        time_base = self._promised.time_base
        slot.publish(
            Descriptor(
                payload_kind=PayloadKind.VIDEO_FRAME,
                source_index=self._index,
                pts=pts,
                duration=duration,
                time_base=(time_base.num, time_base.den),
                pixel_format=self._layout.pixel_format,
                width=self._layout.width,
                height=self._layout.height,
                planes=self._layout.offsets_and_strides,
                color=color_of(frame, self._colors, self._found),
                sample_aspect=self._promised.sample_aspect or (0, 1),
                flags=flags,
                epoch=self._epoch,
            ),
            size,
        )
        self._index += 1

    def _report_end(self, context: Context) -> None:
        """The input has ended: was that all? Raises BadMedia when it was nothing."""
        if self._gone is not None:
            patience = cast(DecodeParameters, self.params).reconnect_seconds
            context.warn(f"{self._title}: {self._gone.reason}, and it did not come back within {patience:g} s")
        if self._reader.delivered == 0:
            mend = "see whether a media player shows it"
            raise BadMedia("no frame of it can be decoded", file=self._title, mend=mend)
        promised = self._found.duration_seconds
        if promised is None or self._clock is None or self._epoch:
            return
        reached = float(self._clock * self._promised.time_base.fraction) - self._found.start_seconds
        if promised - reached > max(1.0, promised / 10):
            context.warn(f"the video ends at {reached:.1f} s, the container's header says {promised:.1f} s")
