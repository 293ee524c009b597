"""Static probes: the notes in the module, and what LTTng and uprobes record of a hand-over between two processes."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dataplane import _ring
from observatory.model.event import EventKind
from tests.peers import missing, peer

PEER = Path(__file__).with_name("probe_peer.py")
ROOT = Path(__file__).resolve().parents[2]
MODULE = Path(_ring.__file__)
FRAMES = 20
ARGUMENTS = ("stream", "epoch", "source_index", "pts", "place", "slot", "bytes", "time_ns")
SIZES = (4, 4, 8, -8, 4, 4, 4, -8)  # as the notes say it: negative is signed
NAMES = {kind.name.lower(): kind for kind in EventKind}

Event = tuple[str, dict[str, int]]


class Note(NamedTuple):
    """A USDT note: where its instruction is in the file, and its arguments as the assembler wrote them."""

    offset: int
    arguments: list[str]


def notes_of(module: Path) -> dict[str, Note]:
    """The probes of provider `observatory`, by name."""
    headers = subprocess.run(["readelf", "-lW", module], capture_output=True, text=True, check=True).stdout
    loads = [
        (int(offset, 16), int(address, 16), int(size, 16))
        for offset, address, size in re.findall(r"LOAD +(0x\w+) (0x\w+) 0x\w+ (0x\w+)", headers)
    ]
    found = {}
    text = subprocess.run(["readelf", "-nW", module], capture_output=True, text=True, check=True).stdout
    pattern = r"Provider: observatory\s+Name: (\w+)\s+Location: (0x\w+),.*\s+Arguments: (.*)"
    for name, location, arguments in re.findall(pattern, text):
        address = int(location, 16)
        (offset,) = (offset + address - start for offset, start, size in loads if start <= address < start + size)
        assert name not in found
        found[name] = Note(offset, arguments.split())
    return found


def require(built: str) -> None:
    if not _ring.probes_built()[built]:
        missing(f"the native module was built without {built}: script/bootstrap installs its headers")


def hand_over(**environment: str) -> list[Event]:
    """Run a producer and a consumer; what their event rings say, in order of kind and frame."""
    rings = [_ring.EventRing.create(1024), _ring.EventRing.create(1024)]
    ends = socket.socketpair()
    processes = []
    for role, ring, end in zip(("produce", "consume"), rings, ends, strict=True):
        command = [sys.executable, str(PEER), role, str(end.fileno()), str(ring.fd), str(FRAMES)]
        processes.append(
            subprocess.Popen(command, pass_fds=[end.fileno(), ring.fd], env=os.environ | environment, cwd=ROOT)
        )
    for end in ends:
        end.close()
    assert [process.wait(60.0) for process in processes] == [0, 0]
    events: list[Event] = []
    for ring in rings:
        assert ring.lost == 0
        for event in ring.drain():
            events.append((EventKind(int(event["kind"])).name.lower(), {name: int(event[name]) for name in ARGUMENTS}))
        ring.close()
    return in_order(events)


def in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (NAMES[event[0]], event[1]["source_index"]))


def check_hand_over(events: list[Event]) -> None:
    """What the two processes did, worked out by hand."""
    assert len(events) == 6 * FRAMES + 2
    signals = [values for name, values in events if name == "fence_signal"]
    assert [values["source_index"] for values in signals] == list(range(1000, 1000 + FRAMES))
    assert [values["pts"] for values in signals] == [-7 * index for index in range(FRAMES)]
    assert [values["bytes"] for values in signals] == [100 + index for index in range(FRAMES)]
    assert {(values["stream"], values["epoch"], values["place"]) for values in signals} == {(3, 2, 11)}
    assert {values["place"] for name, values in events if name == "slot_release"} == {12}


def test_every_kind_has_a_probe_with_its_arguments() -> None:
    require("usdt")
    notes = notes_of(MODULE)
    assert notes.keys() == NAMES.keys()
    for note in notes.values():
        assert [int(argument.split("@")[0]) for argument in note.arguments] == list(SIZES)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the 5-byte nop is of x86-64")
def test_each_probe_is_the_five_byte_nop() -> None:
    require("usdt")
    code = MODULE.read_bytes()
    for name, note in notes_of(MODULE).items():
        assert code[note.offset : note.offset + 5] == bytes.fromhex("0f1f440000"), name


def test_the_module_needs_no_lttng() -> None:
    needed = subprocess.run(["readelf", "-dW", MODULE], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in needed
    assert "lttng" not in needed


def test_asking_for_lttng_in_vain_is_said_and_harms_nothing(tmp_path: Path) -> None:
    # A copy of the module without the provider beside it, as in a wheel that was built without LTTng.
    (tmp_path / MODULE.name).write_bytes(MODULE.read_bytes())
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import _ring\n"
        "ring = _ring.EventRing.create(8); writer = _ring.EventRing.attach(ring.fd)\n"
        "print(writer.emit(2, 1, 1, 1, (1, 1), 0, 0, 0, 0, 0, 0), _ring.__file__)"
    )
    command = [sys.executable, "-I", "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OBSERVATORY_LTTNG": "1"})
    assert done.stdout == f"True {tmp_path / MODULE.name}\n"
    assert re.fullmatch(r"OBSERVATORY_LTTNG: not traced: .*(without LTTng|libobservatory-lttng).*\n", done.stderr)


# -- LTTng --------------------------------------------------------------------------------------------------


class Session:
    """A recording of LTTng, into a folder."""

    def __init__(self, folder: Path) -> None:
        self.lttng = peer("lttng")
        self.name = f"observatory-test-{os.getpid()}"
        self.folder = folder
        # Each session daemon serves one user: ours is used, whoever started it.
        self.daemon = None
        if subprocess.run([self.lttng, "--no-sessiond", "list"], capture_output=True).returncode != 0:
            # It ends with this process, however that ends.
            self.daemon = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", peer("lttng-sessiond"), "--no-kernel", "--quiet"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def run(self, *arguments: str) -> None:
        subprocess.run([self.lttng, "--quiet", *arguments], check=True, capture_output=True, timeout=60)

    def start(self) -> None:
        for _ in range(100):  # until the daemon answers
            if subprocess.run([self.lttng, "--no-sessiond", "list"], capture_output=True).returncode == 0:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                if self.daemon is not None:
                    self.daemon.wait(0.1)
        self.run("create", self.name, "--output", str(self.folder))
        self.run("enable-event", "--userspace", "observatory:*", "--session", self.name)
        self.run("start", self.name)

    def stop(self) -> list[Event]:
        self.run("stop", self.name)
        text = subprocess.run(
            [peer("babeltrace2"), str(self.folder)], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        events = []
        for name, fields in re.findall(r"observatory:(\w+): \{.*?\}, \{(.*)\}", text):
            events.append((name, {key: int(value) for key, value in re.findall(r"(\w+) = (-?\d+)", fields)}))
        return in_order(events)

    def close(self) -> None:
        subprocess.run([self.lttng, "--quiet", "destroy", self.name], capture_output=True, timeout=60)
        if self.daemon is not None:
            self.daemon.terminate()
            self.daemon.wait(60.0)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    require("lttng")
    session = Session(tmp_path / "trace")
    yield session
    session.close()


def test_lttng_records_what_the_event_rings_say(session: Session) -> None:
    session.start()
    events = hand_over(OBSERVATORY_LTTNG="1")
    check_hand_over(events)
    assert session.stop() == events
    # Unasked, a process is not traced, though the session runs.
    session.run("start", session.name)
    hand_over(OBSERVATORY_LTTNG="0")
    assert session.stop() == events


# -- uprobes ------------------------------------------------------------------------------------------------

REGISTERS = {"rax": "ax", "rbx": "bx", "rcx": "cx", "rdx": "dx", "rsi": "si", "rdi": "di", "rbp": "bp", "rsp": "sp"}


def fetch_argument(name: str, written: str) -> str:
    """An argument of a note ("-8@16(%rdx)", "4@%eax") as tracefs wants it."""
    parts = re.fullmatch(r"(-?\d)@(?:(-?\d+)?\(%(r\w+)\)|%(r\w+))", written)
    assert parts is not None, f"cannot translate {written}"
    size, offset, base, register = parts.groups()
    kind = f"{'s' if int(size) < 0 else 'u'}{abs(int(size)) * 8}"
    if register is not None:
        return f"{name}=%{REGISTERS.get(register, register)}:{kind}"
    return f"{name}={int(offset or 0):+d}(%{REGISTERS.get(base, base)}):{kind}"


@contextlib.contextmanager
def tracefs() -> Iterator[Path]:
    """The kernel's tracing folder; skips where this process may not use it."""
    folder = Path("/sys/kernel/tracing")
    mounted = False
    if not (folder / "uprobe_events").exists():
        done = subprocess.run(["mount", "-t", "tracefs", "tracefs", folder], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no tracefs: {done.stderr.strip()}")
        mounted = True
    try:
        if not os.access(folder / "uprobe_events", os.W_OK):
            pytest.skip("uprobes need root, and a kernel that has them")
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=False)


def append(path: Path, line: str) -> None:
    # Not with open(): that looks for the file's end, of which tracefs knows nothing.
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, f"{line}\n".encode())
    finally:
        os.close(fd)


def remove_uprobes(folder: Path, group: str) -> None:
    """The trace of that name, and its uprobes, as far as they are there."""
    instance = folder / "instances" / group
    if instance.exists():
        with contextlib.suppress(OSError):
            (instance / "events" / group / "enable").write_text("0")
        instance.rmdir()
    for name in re.findall(rf"^p:{group}/(\w+) ", (folder / "uprobe_events").read_text(), re.MULTILINE):
        append(folder / "uprobe_events", f"-:{group}/{name}")


def remove_uprobes_of_the_dead(folder: Path) -> None:
    """What tests left that were killed."""
    groups = {instance.name for instance in (folder / "instances").glob("observatory_*")}
    groups.update(re.findall(r"^p:(observatory_\d+)/", (folder / "uprobe_events").read_text(), re.MULTILINE))
    for group in groups:
        if not Path("/proc", group.removeprefix("observatory_")).exists():
            remove_uprobes(folder, group)


@contextlib.contextmanager
def uprobes(folder: Path) -> Iterator[Path]:
    """A trace of its own with a uprobe on each note."""
    remove_uprobes_of_the_dead(folder)
    group = f"observatory_{os.getpid()}"
    instance = folder / "instances" / group
    instance.mkdir()
    try:
        for name, note in notes_of(MODULE).items():
            fields = " ".join(map(fetch_argument, ARGUMENTS, note.arguments))
            append(folder / "uprobe_events", f"p:{group}/{name} {MODULE}:{note.offset:#x} {fields}")
        (instance / "events" / group / "enable").write_text("1")
        yield instance / "trace"
    finally:
        remove_uprobes(folder, group)


def test_uprobes_on_the_notes_see_what_the_event_rings_say() -> None:
    require("usdt")
    with tracefs() as folder, uprobes(folder) as trace:
        events = hand_over()
        check_hand_over(events)
        seen = []
        for name, fields in re.findall(r": (\w+): \(0x\w+\) (.*)", trace.read_text()):
            seen.append((name, {key: int(value) for key, value in re.findall(r"(\w+)=(-?\d+)", fields)}))
    # Other processes that run the same code meanwhile are seen as well.
    mine = [(name, fields) for name, fields in seen if fields["time_ns"] in {event["time_ns"] for _, event in events}]
    assert in_order(mine) == events


# -- builds -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("probes", "notes"), [("sdt", 8), ("off", 0)])
def test_builds_without_the_headers_work(probes: str, notes: int, tmp_path: Path) -> None:
    configure = ["cmake", "-S", str(ROOT), "-B", str(tmp_path), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    options = [f"-DOBSERVATORY_PROBES={probes}", "-DOBSERVATORY_PYTHON_MODULES=OFF", "-DOBSERVATORY_NATIVE_TESTS=ON"]
    subprocess.run([*configure, *options], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path, "--target", "test_event_ring"], check=True, capture_output=True)
    program = tmp_path / "test_event_ring"
    subprocess.run([program], check=True, capture_output=True, timeout=120)
    assert len(notes_of(program)) == notes
    needed = subprocess.run(["readelf", "-dW", program], capture_output=True, text=True, check=True).stdout
    assert "lttng" not in needed
    assert b"liblttng-ust-tracepoint.so" not in program.read_bytes()  # what the call sites would look for
