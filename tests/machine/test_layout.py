"""The NumPy mirror of the machine's memory says what the C compiler says."""

from __future__ import annotations

import ctypes

from chaos.machine.layout import STRUCTS
from chaos.machine.library import nvml_library


def compiled() -> dict[str, int]:
    """`struct` -> its size, `struct.field` -> its offset."""
    library = ctypes.CDLL(str(nvml_library()))
    library.mo_machine_layout.restype = ctypes.c_size_t
    library.mo_machine_layout.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(library.mo_machine_layout(None, 0))
    library.mo_machine_layout(text, len(text))
    return {name: int(value) for name, value in (line.split() for line in text.value.decode().splitlines())}


def mirrored() -> dict[str, int]:
    found = {name: dtype.itemsize for name, dtype in STRUCTS.items()}
    for name, dtype in STRUCTS.items():
        assert dtype.fields is not None
        found |= {f"{name}.{field}": about[1] for field, about in dtype.fields.items()}
    return found


def test_the_mirror_has_every_field_at_its_place() -> None:
    assert mirrored() == compiled()


def test_what_readers_and_the_writer_touch_is_on_lines_of_its_own() -> None:
    offsets = compiled()
    for name in ("mo_machine_header.closed", "mo_machine_header.events_written", "mo_gpu.sequence"):
        assert offsets[name] % 128 == 0
