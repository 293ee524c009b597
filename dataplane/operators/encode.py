"""encode: coded packets from frames."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from av.packet import Packet
from av.stream import Stream
from av.video.frame import PictureType
from pydantic import JsonValue

from dataplane._ring import Descriptor
from dataplane.errors import BadParameters, OperatorFailed
from dataplane.operators.base import (
    NO_WISHES,
    Context,
    Operator,
    OutputPort,
    Parameters,
    Restart,
    Resume,
    SlotClass,
    SourceRequest,
    Write,
)
from dataplane.operators.boundaries import Boundaries
from dataplane.operators.codecs import EncoderSetup, VideoEncoder, set_up, video_encoder
from dataplane.operators.encode_parameters import EncodeParameters
from dataplane.operators.encoder import codec_parameters, open_encoder, rate_of
from dataplane.operators.formats import layout_of
from dataplane.operators.frames import KEY_FRAME, format_colors, frame_of_lease
from dataplane.operators.per_frame import single_video
from dataplane.operators.prefix import CodedFrame, HeldFrame, HeldFrames, decoding_time, most_together
from observatory.model.contract import CommitContract, CommitKind
from observatory.model.event import UNKNOWN_I64
from observatory.model.media import PacketFormat, PayloadKind, PortFormat, VideoFormat

__all__ = ["Encode", "EncodeParameters"]

if TYPE_CHECKING:
    from dataplane._ring import ReadLease

KIB = 1024
FAR_SECONDS = 3600


class Encode(Operator):
    """Encodes frames read in place; the input is acknowledged when the packets cover it as a prefix."""

    op = "encode"
    Params = EncodeParameters
    summary = "Encodes frames with x264, x265, SVT-AV1 or VP9"
    engines: ClassVar[Mapping[str, str]] = {"cpu": "compute", "gpu": "encode", "vpu": "encode"}

    def __init__(self, params: Parameters) -> None:
        super().__init__(params)
        self._held = HeldFrames(1)
        self._leases = 0
        self._last_pts: int | None = None
        self._last_dts: int | None = None
        # What another instance left, whose work this one continues:
        self._earlier_extradata: JsonValue = None
        self._early: list[list[int]] = []  # (epoch, source index, PTS) of what was acknowledged before its packet
        self._last_epoch: int | None = None
        self._last_stretch: int | None = None
        self._boundaries: Boundaries | None = None  # of forced key frames
        self._announced = False

    # -- before anything runs --------------------------------------------------------------------------------------

    @classmethod
    def contract(cls, params: Parameters) -> CommitContract:
        """Prefix: look-ahead, reordering and threads hold frames back. Raises BadParameters."""
        _, setup = _resolve(params)
        return CommitContract(
            kind=CommitKind.PREFIX,
            copies_per_frame=0,
            held_frames=setup.held_frames,
            copies_reason="the encoder reads the slot in place",
        )

    @classmethod
    def restart(cls, params: Parameters, request: SourceRequest = NO_WISHES) -> Restart:
        """Behind any frame: packets are published in whole groups, and what follows begins with a key frame."""
        return Restart(
            after_death=True,
            migration=True,
            why="frames whose packets were not published are encoded again, by a new encoder with the same codec "
            "parameters: its first frame is a key frame, so a restart costs some bits",
        )

    @classmethod
    def output(cls, params: Parameters, inputs: Sequence[PortFormat]) -> tuple[OutputPort, ...]:
        """Packets on port "video". Raises BadParameters for what the encoder cannot do."""
        source = single_video(cls.op, inputs)
        encoder, setup = _resolve(params)
        if source.pixel_format not in encoder.pixel_formats:
            takes = sorted(form.label for form in encoder.pixel_formats)
            raise BadParameters(
                f"encode: {encoder.name} takes {', '.join(takes)}, not {source.pixel_format.label}",
                mend=f"put before it: {{op: convert, params: {{pixel_format: {_closest(source, encoder)}}}}}",
            )
        open_encoder(encoder, setup, source)  # finds out now whether it takes these options
        typical = _typical_packet(cast(EncodeParameters, params), source)
        packets = PacketFormat(
            codec=encoder.codec,
            video=source,
            bytes_per_packet=typical,
            largest_packet_bytes=_largest_packet(source),
            keyframe_seconds=cast(EncodeParameters, params).keyframe_seconds,
        )
        return (
            OutputPort(
                name="video",
                format=packets,
                slots=_slots(source, setup),
                why="packets of a whole group of B-frames, 3 of any size; memory is taken only when used",
            ),
        )

    # -- in the worker ---------------------------------------------------------------------------------------------

    def open(self, context: Context) -> None:
        """Open the encoder."""
        source = single_video(self.op, list(context.inputs.values()))
        encoder, setup = _resolve(self.params)
        self._layout = layout_of(source)
        self._source = source
        self._encoder_type = encoder
        self._setup = setup
        self._most_held = setup.held_frames
        self._held = HeldFrames(setup.group_frames)
        self._slots = _slots(source, setup)
        self._encoder = open_encoder(encoder, setup, source)
        self._time_base = (source.time_base.num, source.time_base.den)
        self._color = format_colors(source)
        keyframe_seconds = cast(EncodeParameters, self.params).keyframe_seconds
        if keyframe_seconds is not None:
            self._boundaries = Boundaries(keyframe_seconds, source.time_base.fraction)

    def continue_from(self, resume: Resume, context: Context) -> None:
        """Go on behind the last whole group that was published."""
        published = resume.on("video")
        self._last_pts = published.last_pts
        self._last_dts = published.last_dts.get(0)
        state = resume.state or {}
        self._earlier_extradata = state.get("extradata")
        self._early = cast("list[list[int]]", state.get("acknowledged_early", []))

    def process(self, frame: ReadLease, edge: str, context: Context) -> None:
        """Encode one frame; publish what comes out; acknowledge what that covers."""
        descriptor = frame.descriptor
        if not self._announced:
            self._announce(context, descriptor.source_index)
        if descriptor.payload_kind != PayloadKind.VIDEO_FRAME:
            frame.release()  # a frame that was lost upstream: it is listed there
            return
        if context.resume is not None and self._is_settled(descriptor, context.resume, context):
            frame.release()
            return
        frame.launch()
        pts = self._rising(descriptor.pts, context)
        duration = max(0, descriptor.duration)
        self._held.add(HeldFrame(frame, descriptor.source_index, descriptor.epoch, pts, duration))
        self._leases += 1
        picture = frame_of_lease(frame, self._layout)
        picture.pts = pts
        if self._begins_anew(pts, descriptor.epoch):
            picture.pict_type = PictureType.I
        packets = self._encoder.encode(picture)
        del picture
        self._publish(packets, context)
        if self._leases > self._most_held:
            self._let_go(context)

    def flush(self, context: Context) -> None:
        """Publish what is still in the encoder; release everything."""
        if not self._announced:
            self._announce(context)
        if self._last_pts is not None:
            self._publish(self._encoder.encode(None), context, whatever=True)
        for held in self._held:
            context.lost(held.source_index, held.pts, "the encoder made no packet of it")
        for held in self._held:
            self._release(held)
        self._held.forget()

    def abort(self) -> None:
        """Acknowledge nothing: frames whose packets were not published were not done, and the encoder has them yet."""
        self._held.forget()

    # -- internals -------------------------------------------------------------------------------------------------

    def _is_settled(self, said: Descriptor, resume: Resume, context: Context) -> bool:
        """Whether a frame that came again needs no work: its packet is out, or can come no more."""
        published = resume.on("video")
        if said.source_index >= published.next_source_index:
            return False
        if not published.covers(said.epoch, said.source_index):  # its group had no room to be published at once
            context.lost(said.source_index, said.pts, "the encoder died between two packets of one group")
        return True

    def _rising(self, pts: int, context: Context) -> int:
        """The time of a frame, moved behind its predecessor's where it is not already."""
        last = self._last_pts
        if last is not None and pts <= last:
            context.warn("frame times that do not rise were moved behind their predecessors")
            pts = last + 1
        self._last_pts = pts
        return pts

    def _begins_anew(self, pts: int, epoch: int) -> bool:
        """Whether a frame has to be a key frame, whatever the encoder makes of it.

        At a discontinuity of the source (a new epoch) too: nothing after it has to do with what was before.
        """
        stretch = None if self._boundaries is None else self._boundaries.before(pts)
        anew = stretch != self._last_stretch or epoch != self._last_epoch
        self._last_stretch, self._last_epoch = stretch, epoch
        return anew

    def _list_lost(self, resume: Resume, comes: int | None, context: Context) -> None:
        """What an earlier encoder had, and nobody else: those acknowledged before the first that `comes` again."""
        published = resume.on("video")
        listed = {loss.source_index for loss in resume.lost}
        for epoch, source_index, pts in self._early:
            gone = comes is None or source_index < comes
            if gone and source_index not in listed and not published.covers(epoch, source_index):
                context.lost(source_index, pts, "it was in the encoder when that died, and had been acknowledged early")
        self._early = []

    def _announce(self, context: Context, comes: int | None = None) -> None:
        """Publish the codec parameters: always the first payload. `comes`: the index of the first frame."""
        self._announced = True
        if context.resume is not None:
            self._list_lost(context.resume, comes, context)
        said = codec_parameters(self._encoder_type, self._encoder, self._source).model_dump_json(exclude_none=True)
        payload = said.encode()
        self._checkpoint(context)
        if self._earlier_extradata not in (None, self._fingerprint()):
            context.warn(
                f"{self._encoder_type.name} began anew with other codec parameters than before: players that read them "
                "only once may not show what follows"
            )
        with context.acquire(len(payload)) as slot:
            slot.array[: len(payload)] = np.frombuffer(payload, np.uint8)
            slot.publish(Descriptor(payload_kind=PayloadKind.CODEC_PARAMETERS), len(payload))

    def _publish(self, packets: Sequence[Packet[Stream]], context: Context, whatever: bool = False) -> None:
        """Publish the packets if they are whole groups, and acknowledge the frames that they cover."""
        held = self._held
        for packet in packets:
            if not held.coded(packet):
                raise OperatorFailed(
                    f"{context.name}: {self._encoder_type.name} made a packet of no frame it was given"
                )
            self._publish_group(held.group(), context)
        if whatever:
            self._publish_group(held.group(whatever), context)
        for frame in held.take_finished():
            self._release(frame)

    def _publish_group(self, group: list[CodedFrame], context: Context) -> None:
        """By one commit, unless the slots of the port have no room for all of it."""
        while group:
            count = most_together([coded.packet.size for coded in group], self._slots)
            if count < len(group):
                context.warn("some packets that belong together are too big to be published at once")
            self._commit(group[:count], context)
            group = group[count:]

    def _commit(self, group: list[CodedFrame], context: Context) -> None:
        leases = {}
        with ExitStack() as unfinished:
            # The biggest first, or a small one might sit where alone a bigger one has room.
            for coded in sorted(group, key=lambda coded: -coded.packet.size):
                packet, size = coded.packet, coded.packet.size
                slot = leases[id(coded)] = unfinished.enter_context(context.acquire(size))
                slot.launch()
                slot.array[:size] = np.frombuffer(memoryview(packet), np.uint8)
            context.publish_together(
                [Write(leases[id(it)], self._describe(it.packet, it.frame), it.packet.size) for it in group]
            )
        for coded in group:
            coded.frame.published = True

    def _describe(self, packet: Packet[Stream], held: HeldFrame) -> Descriptor:
        dts = UNKNOWN_I64
        if packet.dts is not None:
            early = self._setup.group_frames * max(1, held.duration)
            far = round(FAR_SECONDS / self._source.time_base.fraction)
            self._last_dts = dts = decoding_time(packet.dts, held.pts, self._last_dts, early, far)
        return Descriptor(
            payload_kind=PayloadKind.VIDEO_PACKET,
            source_index=held.source_index,
            pts=held.pts,
            dts=dts,
            duration=held.duration,
            time_base=self._time_base,
            width=self._layout.width,
            height=self._layout.height,
            color=self._color,
            sample_aspect=self._source.sample_aspect or (0, 1),
            flags=KEY_FRAME if packet.is_keyframe else 0,
            epoch=held.epoch,
        )

    def _let_go(self, context: Context) -> None:
        """More is held than the contract says: acknowledge the oldest early, rather than starve the pool upstream."""
        context.warn(
            f"{self._encoder_type.name} held more than the {self._most_held} frames that were expected; frames were "
            "acknowledged before their packets were published"
        )
        oldest = next(held for held in self._held if held.lease is not None)
        self._checkpoint(context, oldest)
        self._release(oldest)

    def _checkpoint(self, context: Context, going: HeldFrame | None = None) -> None:
        """Leave word of what nobody will see again if this process dies: frames acknowledged before their packets."""
        gone = [it for it in self._held if not it.published and (it.lease is None or it is going)]
        early: list[JsonValue] = [[it.epoch, it.source_index, it.pts] for it in gone]
        context.checkpoint({"extradata": self._fingerprint(), "acknowledged_early": early})

    def _fingerprint(self) -> str:
        return hashlib.sha256(self._encoder.extradata or b"").hexdigest()

    def _release(self, held: HeldFrame) -> None:
        if held.lease is not None:
            held.lease.release()
            held.lease = None
            self._leases -= 1


def _resolve(params: Parameters) -> tuple[VideoEncoder, EncoderSetup]:
    wanted = cast(EncodeParameters, params)
    encoder = video_encoder(wanted.codec)
    return encoder, set_up(encoder, wanted.wish)


def _largest_packet(source: VideoFormat) -> int:
    """Bytes; lossless noise takes 1.6 times its size."""
    return 2 * source.bytes_per_frame + 64 * KIB


def _slots(source: VideoFormat, setup: EncoderSetup) -> tuple[SlotClass, ...]:
    """Room for a whole group, unless more than 3 of its packets are bigger than a quarter of a raw frame.

    Packets of a group are waited for in the encoder's memory and need their slots all at once; consumers give those
    back that they have. B-frames of more than a quarter of their picture are those of noise, lossless.
    """
    group = setup.group_frames
    largest, quarter = _largest_packet(source), source.bytes_per_frame // 4
    if largest <= 256 * KIB:
        return SlotClass(16 * KIB, 64), SlotClass(largest, max(16, group))
    slots = [SlotClass(16 * KIB, 64), SlotClass(256 * KIB, max(16, group)), SlotClass(largest, 3)]
    if group > 1 and quarter > 256 * KIB:
        slots.insert(2, SlotClass(quarter, group))
    return tuple(slots)


def _typical_packet(params: EncodeParameters, source: VideoFormat) -> int:
    """Bytes of an average packet: from the bit rate, else a 10th of a bit per sample."""
    bits = int(params.bitrate) if params.bitrate else source.width * source.height * float(rate_of(source)) / 10
    return max(64, round(bits / 8 / float(rate_of(source))))


def _closest(source: VideoFormat, encoder: VideoEncoder) -> str:
    """The format to convert to: the same depth where the encoder has it."""
    depth = source.pixel_format.bytes_per_sample
    same = sorted(form for form in encoder.pixel_formats if form.bytes_per_sample == depth)
    return (same or sorted(encoder.pixel_formats))[0].label
