"""Which kinds of BPF programs this kernel takes, found out by loading one that does nothing, and attaching it."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from observatory.receivers.ebpf_library import libbpf_words, library, refusal

# Numbers of enum bpf_prog_type and enum bpf_attach_type in linux/bpf.h: part of the kernel's interface.
_RAW_TRACEPOINT, _TRACING = 17, 26
_TRACE_RAW_TP, _TRACE_FENTRY = 23, 24
_RETURN_0 = bytes.fromhex("b7000000000000009500000000000000")  # r0 = 0; exit


@dataclass(frozen=True, slots=True)
class ProgramKind:
    """A kind of program. `traced` is the tracepoint or function of the kernel that it is bound to, if any.

    `attaches`: by descriptor alone, so that attaching, too, can be tried without touching anything. `place`: a file
    that is there where such a program can be attached.
    """

    name: str
    type: int
    attach_type: int = 0
    traced: str | None = None
    attaches: bool = False
    place: str | None = None


KINDS = (
    ProgramKind("raw_tp", _RAW_TRACEPOINT, traced="softirq_raise", attaches=True),
    ProgramKind("tp_btf", _TRACING, _TRACE_RAW_TP, "softirq_raise", attaches=True),
    ProgramKind("fentry", _TRACING, _TRACE_FENTRY, "kernel_power_off", attaches=True),
    ProgramKind("tracepoint", 5, place="/sys/kernel/tracing/events"),
    ProgramKind("kprobe", 2, place="/sys/bus/event_source/devices/kprobe"),
    ProgramKind("perf_event", 7),
    ProgramKind("xdp", 6),
    ProgramKind("tc", 3),
)


class _LoadOptions(ctypes.Structure):
    """The beginning of struct bpf_prog_load_opts; libbpf takes the rest as 0."""

    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_uint32),
        ("prog_btf_fd", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_ifindex", ctypes.c_uint32),
        ("kern_version", ctypes.c_uint32),
        ("attach_btf_id", ctypes.c_uint32),
        ("attach_prog_fd", ctypes.c_uint32),
    )


def refused(kind: ProgramKind) -> str | None:
    """Why the kernel does not take such a program; None: it does. Raises ReceiverUnavailable: there is no libbpf."""
    loaded = library()
    options = _LoadOptions(sz=ctypes.sizeof(_LoadOptions), expected_attach_type=kind.attach_type)
    with libbpf_words():
        if kind.attach_type and kind.traced:
            found = loaded.libbpf_find_vmlinux_btf_id(kind.traced.encode(), kind.attach_type)
            if found <= 0:
                return f"the kernel's BTF has no {kind.traced}"
            options.attach_btf_id = found
        code = ctypes.create_string_buffer(_RETURN_0, len(_RETURN_0))
        program = loaded.bpf_prog_load(
            kind.type, b"observatory", b"GPL", code, len(_RETURN_0) // 8, ctypes.byref(options)
        )
        if program < 0:
            return f"loading: {refusal(-program)[0]}"
        try:
            if kind.place is not None and not Path(kind.place).exists():
                return f"attaching: there is no {kind.place}"
            return _refused_attachment(kind, program) if kind.attaches else None
        finally:
            os.close(program)


def _refused_attachment(kind: ProgramKind, program: int) -> str | None:
    # A BTF-bound program knows its place; a raw one is told.
    name = kind.traced.encode() if kind.traced and not kind.attach_type else None
    link = library().bpf_raw_tracepoint_open(name, program)
    if link < 0:
        return f"attaching: {refusal(-link)[0]}"
    os.close(link)
    return None


def program_kinds() -> dict[str, str | None]:
    """By kind: None where it works, else why not. Raises ReceiverUnavailable: there is no libbpf."""
    return {kind.name: refused(kind) for kind in KINDS}
