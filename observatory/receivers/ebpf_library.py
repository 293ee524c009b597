"""libbpf as far as receivers need it, through ctypes: open an object, load it, attach it, read its maps.

Functions and their meaning: https://libbpf.readthedocs.io/en/latest/api.html (version 1.x, Debian's libbpf1).
Everything here lives by descriptors of this process: a process that dies leaves no program behind.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable

LIBRARY = "libbpf.so.1"
AS_ROOT = "run as root, or with CAP_BPF and CAP_PERFMON"

_POINTER, _INT, _UINT, _TEXT, _FD = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_int
_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "bpf_object__open_file": (_POINTER, (_TEXT, _POINTER)),
    "bpf_object__load": (_INT, (_POINTER,)),
    "bpf_object__close": (None, (_POINTER,)),
    "bpf_object__next_program": (_POINTER, (_POINTER, _POINTER)),
    "bpf_object__find_map_by_name": (_POINTER, (_POINTER, _TEXT)),
    "bpf_program__name": (_TEXT, (_POINTER,)),
    "bpf_program__set_autoload": (_INT, (_POINTER, ctypes.c_bool)),
    "bpf_program__attach": (_POINTER, (_POINTER,)),
    "bpf_program__fd": (_FD, (_POINTER,)),
    "bpf_link__destroy": (_INT, (_POINTER,)),
    "bpf_map__fd": (_FD, (_POINTER,)),
    "bpf_map__key_size": (_UINT, (_POINTER,)),
    "bpf_map__value_size": (_UINT, (_POINTER,)),
    "bpf_map__initial_value": (_POINTER, (_POINTER, ctypes.POINTER(ctypes.c_size_t))),
    "bpf_map_lookup_elem": (_INT, (_FD, _POINTER, _POINTER)),
    "bpf_map_lookup_batch": (_INT, (_FD, *(_POINTER,) * 4, ctypes.POINTER(_UINT), _POINTER)),
    "bpf_prog_load": (_INT, (_INT, _TEXT, _TEXT, _POINTER, ctypes.c_size_t, _POINTER)),
    "bpf_raw_tracepoint_open": (_INT, (_TEXT, _FD)),
    "bpf_enable_stats": (_INT, (_INT,)),
    "bpf_obj_get_info_by_fd": (_INT, (_FD, _POINTER, ctypes.POINTER(_UINT))),
    "libbpf_num_possible_cpus": (_INT, ()),
    "libbpf_find_vmlinux_btf_id": (_INT, (_TEXT, _INT)),
    "libbpf_set_print": (_POINTER, (_POINTER,)),
}
_PRINT = ctypes.CFUNCTYPE(_INT, _INT, _TEXT, _POINTER)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The library. Raises ReceiverUnavailable: it is not installed, or too old."""
    try:
        loaded = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as error:
        raise ReceiverUnavailable(f"{LIBRARY} does not load: {error}", mend="apt-get install libbpf1") from None
    try:
        for name, (returns, takes) in _PROTOTYPES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = returns, takes
    except AttributeError as error:
        raise ReceiverUnavailable(f"{LIBRARY} is too old: {error}", mend="install libbpf 1.1 or newer") from None
    return loaded


@contextmanager
def libbpf_words() -> Iterator[list[str]]:
    """What libbpf says meanwhile, line by line, in place of standard error; of several threads the last one hears."""
    said: list[str] = []
    c = ctypes.CDLL(None)
    c.vsnprintf.argtypes = (_POINTER, ctypes.c_size_t, _TEXT, _POINTER)

    def hear(_level: int, form: bytes, arguments: int) -> int:
        buffer = ctypes.create_string_buffer(4096)
        c.vsnprintf(buffer, len(buffer), form, arguments)
        said.extend(buffer.value.decode(errors="replace").splitlines())
        return 0

    heard = _PRINT(hear)
    before = library().libbpf_set_print(heard)
    try:
        yield said
    finally:
        library().libbpf_set_print(before)


def refusal(number: int) -> tuple[str, str | None]:
    """What the kernel's `errno` means for a program of ours, and the mend."""
    if number in (errno.EPERM, errno.EACCES):
        return f"the kernel does not permit it ({os.strerror(number)})", AS_ROOT if os.geteuid() != 0 else None
    return f"the kernel refuses it ({os.strerror(number)})", None


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """What a program has cost since `count_costs`: runs and nanoseconds together."""

    runs: int
    nanoseconds: int


class BpfObject:
    """A loaded object whose programs are attached. `close` undoes everything.

    Args:
        path: the compiled object.
        programs: names of those to load; the others stay out of the kernel.
        constants: what `.rodata` begins with.

    Raises:
        ReceiverUnavailable: libbpf is missing, or the kernel refuses the object; with the mend where there is one.
    """

    def __init__(self, path: Path, programs: frozenset[str], constants: bytes = b"") -> None:
        self._library = library()
        self._object: int | None = None
        self._links: list[int] = []
        self._programs: dict[str, int] = {}
        try:
            with libbpf_words() as said:
                self._open(path, programs, constants, said)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, programs: frozenset[str], constants: bytes, said: list[str]) -> None:
        self._object = self._library.bpf_object__open_file(os.fsencode(path), None)
        if not self._object:
            raise _refused(f"{path.name} cannot be opened", ctypes.get_errno(), said)
        for name, program in self._each_program():
            self._library.bpf_program__set_autoload(program, name in programs)
            if name in programs:
                self._programs[name] = program
        if constants:
            size = ctypes.c_size_t()
            begin = self._library.bpf_map__initial_value(self._map(".rodata"), ctypes.byref(size))
            if not begin or size.value < len(constants):
                raise ReceiverUnavailable(f"{path.name} has no room for its constants")
            ctypes.memmove(begin, constants, len(constants))
        result = self._library.bpf_object__load(self._object)
        if result != 0:
            raise _refused(f"{path.name} does not load", -result, said)
        for name, program in self._programs.items():
            link = self._library.bpf_program__attach(program)
            if not link:
                raise _refused(f"{name} cannot be attached", ctypes.get_errno(), said)
            self._links.append(link)

    def _each_program(self) -> Iterator[tuple[str, int]]:
        program = self._library.bpf_object__next_program(self._object, None)
        while program:
            yield self._library.bpf_program__name(program).decode(), program
            program = self._library.bpf_object__next_program(self._object, program)

    def _map(self, name: str) -> int:
        found = self._library.bpf_object__find_map_by_name(self._object, name.encode())
        if not found:
            raise ReceiverUnavailable(f"the object has no map {name}", mend="start script/bootstrap")
        return int(found)

    def hash_map(self, name: str, key: np.dtype[Any], value: np.dtype[Any], most: int, per_cpu: bool) -> HashMap:
        """A hash map of at most `most` entries. Raises ReceiverUnavailable: its layout is another."""
        return HashMap(self._descriptor(name, key.itemsize, value.itemsize), key, value, most, _copies(per_cpu))

    def first_of_array(self, name: str, value: np.dtype[Any]) -> npt.NDArray[Any]:
        """The first entry of a per-CPU array, one row a possible processor.

        Raises as `hash_map`, and ReceiverFailed: it cannot be read.
        """
        descriptor = self._descriptor(name, 4, value.itemsize)
        rows = np.zeros(_copies(True), value)
        first = ctypes.c_uint32(0)
        if self._library.bpf_map_lookup_elem(descriptor, ctypes.byref(first), rows.ctypes.data) != 0:
            raise ReceiverFailed(f"map {name} cannot be read: {os.strerror(ctypes.get_errno())}")
        return rows

    def _descriptor(self, name: str, key_bytes: int, value_bytes: int) -> int:
        found = self._map(name)
        sizes = self._library.bpf_map__key_size(found), self._library.bpf_map__value_size(found)
        if sizes != (key_bytes, value_bytes):
            words = (
                f"map {name} has entries of {sizes} bytes, not {(key_bytes, value_bytes)}: built from another version"
            )
            raise ReceiverUnavailable(words, mend="start script/bootstrap")
        return int(self._library.bpf_map__fd(found))

    def costs(self) -> dict[str, ProgramCost]:
        """What each program has cost while `counted_costs` went on."""
        return {name: _cost(self._library.bpf_program__fd(program)) for name, program in self._programs.items()}

    def close(self) -> None:
        """Detach and unload; a second call does nothing."""
        for link in self._links:
            self._library.bpf_link__destroy(link)
        self._links.clear()
        self._programs.clear()
        if self._object:
            self._library.bpf_object__close(self._object)
            self._object = None


def _refused(what: str, number: int, said: list[str]) -> ReceiverUnavailable:
    words, mend = refusal(number)
    last = next((line for line in reversed(said) if line.strip() and not line.startswith(_SAYS_LITTLE)), "")
    detail = f": {last.removeprefix('libbpf: ')}" if last else ""
    return ReceiverUnavailable(f"{what}: {words}{detail}", mend=mend)


_SAYS_LITTLE = ("libbpf: failed to load object", "-- END PROG LOAD LOG")


def _copies(per_cpu: bool) -> int:
    return int(library().libbpf_num_possible_cpus()) if per_cpu else 1


class HashMap:
    """Reads a hash map whole, in one system call."""

    def __init__(self, descriptor: int, key: np.dtype[Any], value: np.dtype[Any], most: int, copies: int) -> None:
        if value.itemsize % 8:
            raise ValueError("the kernel pads values to eight bytes: pad the layout")
        self._descriptor = descriptor
        self._keys = np.zeros(most, key)
        self._values = np.zeros((most, copies), value)

    def read(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Keys (n), and values (n, copies: one for each possible processor, or one). They hold until the next call.

        Raises ReceiverFailed: the map cannot be read.
        """
        count = ctypes.c_uint32(len(self._keys))
        cursor = (ctypes.c_char * max(8, self._keys.itemsize))()
        result = library().bpf_map_lookup_batch(
            self._descriptor,
            None,
            cursor,
            self._keys.ctypes.data,
            self._values.ctypes.data,
            ctypes.byref(count),
            None,
        )
        if result != 0 and ctypes.get_errno() != errno.ENOENT:  # ENOENT: that was all
            raise ReceiverFailed(f"a BPF map cannot be read: {os.strerror(ctypes.get_errno())}")
        return self._keys[: count.value], self._values[: count.value]


@contextmanager
def counted_costs() -> Iterator[None]:
    """The kernel counts runs and time of all BPF programs meanwhile, which costs two clock readings a run."""
    run_time = 0  # BPF_STATS_RUN_TIME
    descriptor = library().bpf_enable_stats(run_time)
    if descriptor < 0:
        words, mend = refusal(ctypes.get_errno())
        raise ReceiverUnavailable(f"costs of BPF programs cannot be counted: {words}", mend=mend)
    try:
        yield
    finally:
        os.close(descriptor)


_PROG_INFO_BYTES, _RUN_TIME_OFFSET = 224, 192  # struct bpf_prog_info of linux/bpf.h: run_time_ns, run_cnt


def _cost(descriptor: int) -> ProgramCost:
    info = (ctypes.c_char * _PROG_INFO_BYTES)()
    size = ctypes.c_uint32(_PROG_INFO_BYTES)
    if library().bpf_obj_get_info_by_fd(descriptor, info, ctypes.byref(size)) != 0:
        raise ReceiverFailed(f"a BPF program's costs cannot be read: {os.strerror(ctypes.get_errno())}")
    nanoseconds, runs = np.frombuffer(bytes(info), "<u8", 2, _RUN_TIME_OFFSET).tolist()
    return ProgramCost(runs, nanoseconds)
