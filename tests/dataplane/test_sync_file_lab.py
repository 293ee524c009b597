"""The importer against real fences: a small machine under QEMU whose kernel has vgem. This one has no sync_file.

Needs QEMU and Debian's kernel of bookworm-backports, unpacked by `tests/lab/get_kernel`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers import missing, peer

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tests" / "lab"
KERNEL = ROOT / "build" / "lab" / "kernel"
MODULES = ("drm", "drm_kms_helper", "drm_shmem_helper", "vgem")  # in the order of loading
CORE = ("fence", "death_watch", "futex", "sys")


def build_guest(program: Path) -> None:
    """The guest's only program, without shared libraries."""
    native = ROOT / "dataplane" / "native" / "core"
    sources = [LAB / "sync_file_guest.cpp", *(native / f"{name}.cpp" for name in CORE)]
    includes = [f"-I{ROOT / 'dataplane' / 'abi'}", f"-I{native}"]
    compiler = [*os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "").split(), "c++"]
    subprocess.run(
        [*compiler, "-std=c++20", "-O1", "-static", *includes, *map(str, sources), "-o", program], check=True
    )


def entry(name: str, mode: int, content: bytes) -> Iterator[bytes]:
    """One file of an initial RAM disk (cpio, "newc")."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    yield b"070701" + b"".join(b"%08X" % field for field in fields)
    yield path + b"\0" * (-(110 + len(path)) % 4)
    yield content + b"\0" * (-len(content) % 4)


def ram_disk(program: Path) -> bytes:
    parts = [*entry("init", 0o100755, program.read_bytes()), *entry("modules", 0o040755, b"")]
    files = [next(KERNEL.glob(f"lib/modules/*/kernel/**/{name}.ko.xz")) for name in MODULES]
    for file in files:
        parts += entry(f"modules/{file.name}", 0o100644, file.read_bytes())
    parts += entry("modules/order", 0o100644, "".join(f"{file.name}\n" for file in files).encode())
    parts += entry("TRAILER!!!", 0, b"")
    return b"".join(parts)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_importer_waits_for_fences_of_a_real_kernel(tmp_path: Path) -> None:
    qemu = peer("qemu-system-x86_64")
    images = sorted(KERNEL.glob("boot/vmlinuz-*"))
    if not images:
        missing("no kernel under build/lab/kernel (tests/lab/get_kernel unpacks one)")
    if shutil.which("c++") is None:
        missing("no C++ compiler")
    build_guest(tmp_path / "init")
    (tmp_path / "disk").write_bytes(ram_disk(tmp_path / "init"))
    machine = ["-accel", "tcg", "-cpu", "max", "-m", "512", "-smp", "2", "-nographic", "-no-reboot", "-nic", "none"]
    boot = ["-kernel", str(images[-1]), "-initrd", str(tmp_path / "disk"), "-append", "console=ttyS0 quiet panic=-1"]
    done = subprocess.run([qemu, *machine, *boot], capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
    output = done.stdout.decode(errors="replace")
    print(output)
    assert "signalled: vgem" in output
    assert "refused: descriptor" in output
    assert "lab: passed" in output
