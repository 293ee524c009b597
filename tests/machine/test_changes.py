"""What a person sets of links and devices: names, values, what becomes of the fabric, the log and the files."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chaos.errors import BadChange, CannotEmulate, NoSuchPart
from chaos.machine.home import MEMORY
from chaos.machine.machine import EmulatedMachine
from chaos.machine.targets import find_target
from dataplane.fabric import Fabric, LinkFlag
from observatory.model.topology import Node, Topology
from observatory.receivers.kernel_log import recognise_all
from observatory.topology.load import load_topology
from tests.machine.machines import NVLINK, fabric_of, two_gpus


@pytest.fixture
def fabric() -> Fabric:
    return fabric_of(two_gpus())


@pytest.fixture
def machine(fabric: Fabric, tmp_path: Path) -> Iterator[EmulatedMachine]:
    with EmulatedMachine(two_gpus(), fabric, tmp_path / "machine") as found:
        yield found


def log_of(machine: EmulatedMachine) -> str:
    """What the pipe holds."""
    descriptor = os.open(machine.root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, 1 << 17).decode()
    except BlockingIOError:
        return ""
    finally:
        os.close(descriptor)


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [NVLINK, "n0/gpu0--n0/gpu1", "n0/gpu1--n0/gpu0:nvlink", "gpu0-gpu1", "gpu1-gpu0:nvlink", "gpu0--gpu1"]
)
def test_links_have_short_names(text: str) -> None:
    found = find_target(two_gpus(), "n0", text).link
    assert found is not None
    assert found.id == NVLINK


def test_a_device_is_named_with_or_without_its_machine() -> None:
    for text in ("gpu1", "n0/gpu1"):
        found = find_target(two_gpus(), "n0", text).device
        assert found is not None
        assert found.id == "n0/gpu1"


@pytest.mark.parametrize(
    ("text", "words", "mend"),
    [
        ("gpu0-gpu7", "there is no link and no device 'gpu0-gpu7'", "did you mean gpu0-gpu1?"),
        (
            "gpu0-socket1",
            "no link joins n0/gpu0 and n0/socket1",
            "n0/gpu0 is linked to n0/pcie0 (pcie), n0/gpu1 (nvlink)",
        ),
        ("gpu0-gpu1:pcie", "no pcie link joins", "n0/gpu0 is linked to"),
        ("pcie0", "is no link and no device", "n0/pcie0 is linked to n0/socket0 (pcie)"),
        ("zzzzzzz", "there is no link and no device", "observatory topology show"),
    ],
)
def test_a_name_that_is_none_gets_help(text: str, words: str, mend: str) -> None:
    with pytest.raises(NoSuchPart) as raised:
        find_target(two_gpus(), "n0", text)
    assert words in raised.value.message
    assert mend in str(raised.value.mend)


def test_two_links_between_the_same_ends_are_told_apart_by_their_kind() -> None:
    topology = two_gpus()
    both = next(link for link in topology.links if link.id == NVLINK)
    twice = topology.model_copy(update={"links": (*topology.links, both.model_copy(update={"kind": "pcie"}))})
    with pytest.raises(NoSuchPart) as raised:
        find_target(twice, "n0", "gpu0-gpu1")
    assert raised.value.mend == "name one: n0/gpu0--n0/gpu1:nvlink, n0/gpu0--n0/gpu1:pcie"


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "key", "value", "words"),
    [
        ("gpu0-gpu1", "widht", "8", "did you mean width?"),
        ("gpu0-gpu1", "width", "13", "from 0 to 12"),
        ("gpu0-gpu1", "width", "many", "that is no number"),
        ("gpu0-pcie0", "width", "7", "1, 2, 4, 8, 12, 16 lanes"),
        ("gpu0-pcie0", "width", "0", "from 1 to 16"),
        ("gpu0-pcie0", "speed", "32GT/s", "2.5, 5, 8, 16 GT/s"),
        ("gpu0-pcie0", "bandwidth", "100GB/s", "at most 100%"),
        ("gpu0-pcie0", "bandwidth", "0", "above 0"),
        ("gpu0-pcie0", "bandwidth", "5 parsecs", "no unit of a rate"),
        ("gpu0-pcie0", "latency", "5", "a time needs a unit"),
        ("gpu0-pcie0", "state", "sideways", "up, as it should be, or down"),
        ("cpu0-socket0", "width", "8", "does not tell the width"),
        ("gpu0", "temperature", "900", "from 0 to 150"),
        ("gpu0", "throttle", "thermals", "did you mean thermal?"),
        ("gpu0", "lost", "maybe", "yes or no"),
        ("nic0", "loss", "100%", "below 1"),
        ("cpu0", "width", "8", "nothing of n0/cpu0 (cpu) can be set"),
    ],
)
def test_values_that_cannot_be_are_refused_in_words(
    machine: EmulatedMachine, target: str, key: str, value: str, words: str
) -> None:
    with pytest.raises(BadChange) as raised:
        machine.set(target, {key: value})
    assert words in f"{raised.value} {raised.value.mend}"


@given(
    target=st.sampled_from(["gpu0-gpu1", "gpu0-pcie0", "nic0-pcie0", "gpu0", "nic0"]) | st.text(max_size=20),
    key=st.sampled_from(
        ["width", "speed", "bandwidth", "latency", "state", "errors", "loss", "memory", "power", "xid"]
    ),
    value=st.text(max_size=12)
    | st.from_regex(r"-?[0-9]{1,4}(\.[0-9]{1,3})?(e[0-9]{1,3})?(%|[a-zA-Z/]{1,5})?", fullmatch=True),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_asked_is_done_or_refused_in_words(
    machine: EmulatedMachine, target: str, key: str, value: str
) -> None:
    try:
        told = machine.set(target, {key: value})
    except (BadChange, NoSuchPart):
        return
    assert told
    assert 0 < machine.link(NVLINK).bandwidth_share <= 1


def test_nothing_changes_where_one_of_several_changes_cannot_be(machine: EmulatedMachine, fabric: Fabric) -> None:
    with pytest.raises(BadChange):
        machine.set("gpu0-gpu1", {"width": "6", "latency": "never"})
    assert machine.link(NVLINK).width == 12
    assert fabric.status(NVLINK).flag is LinkFlag.UP
    with pytest.raises(BadChange):
        machine.set("gpu0", {"power": "100W", "lost": "perhaps"})
    with pytest.raises(BadChange):
        machine.set("gpu0", {})


# -- the fabric --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"width": "6"}, 0.5),
        ({"bandwidth": "25%"}, 0.25),
        ({"bandwidth": "75GB/s"}, 0.25),
        ({"width": "6", "bandwidth": "50%"}, 0.25),
    ],
)
def test_the_fabric_carries_what_is_left(
    machine: EmulatedMachine, fabric: Fabric, changes: dict[str, str], share: float
) -> None:
    told = machine.set("gpu0-gpu1", changes)
    status = fabric.status(NVLINK)
    assert status.flag is LinkFlag.DEGRADED
    assert status.bandwidth_share == pytest.approx(share)
    assert told["bandwidth_bytes_per_second"] == pytest.approx(300e9 * share)
    assert told["state"] == "degraded"
    assert machine.set("gpu0-gpu1", {"state": "up"})["state"] == "up"
    assert fabric.status(NVLINK).flag is LinkFlag.UP


def test_width_and_speed_of_a_bus_take_their_parts(machine: EmulatedMachine, fabric: Fabric) -> None:
    machine.set("gpu0-pcie0", {"width": "8", "speed": "gen3"})
    assert fabric.status("n0/gpu0--n0/pcie0:pcie").bandwidth_share == pytest.approx(0.25)
    machine.set("gpu0-pcie0", {"width": "16"})
    assert fabric.status("n0/gpu0--n0/pcie0:pcie").bandwidth_share == pytest.approx(0.5)


def test_latency_is_added_and_links_are_cut(machine: EmulatedMachine, fabric: Fabric) -> None:
    machine.set("gpu0-gpu1", {"latency": "5us"})
    assert fabric.status(NVLINK).added_latency_seconds == pytest.approx(5e-6)
    machine.set("gpu0-gpu1", {"state": "down"})
    assert fabric.status(NVLINK).flag is LinkFlag.DOWN
    machine.set("gpu0-gpu1", {"state": "up"})
    assert fabric.status(NVLINK).added_latency_seconds == 0


def test_no_width_is_down(machine: EmulatedMachine, fabric: Fabric) -> None:
    machine.set("gpu0-gpu1", {"width": "0"})
    assert fabric.status(NVLINK).flag is LinkFlag.DOWN


def test_a_link_that_others_cut_in_the_fabric_is_told_as_down(machine: EmulatedMachine, fabric: Fabric) -> None:
    fabric.take_down(NVLINK)
    assert machine.link(NVLINK).state == "down"


# -- the kernel's log --------------------------------------------------------------------------------------------------


def test_the_log_says_what_drivers_say(machine: EmulatedMachine) -> None:
    gpus = [str(d.pci_bus_id) for d in machine.topology.devices if d.kind == "gpu"]
    machine.set("gpu0", {"xid": "48"})
    machine.set("gpu1", {"lost": "yes"})
    machine.set("gpu0-gpu1", {"state": "down"})
    machine.set("gpu0-pcie0", {"errors": "1"})
    machine.set("gpu0-pcie0", {"fatal": "1"})
    events = list(recognise_all(log_of(machine).splitlines(), "n0"))
    assert [(e.kind, e.code, e.subject.key) for e in events if e.attributes.get("report") != "root_port"] == [
        ("xid", "48", gpus[0]),
        ("xid", "79", gpus[1]),
        ("xid", "74", gpus[0]),
        ("xid", "74", gpus[1]),
        ("aer", "corrected", gpus[0]),
        ("aer", "fatal", gpus[0]),
    ]
    assert all(abs(e.at_ns - time.monotonic_ns()) < 60e9 for e in events)


def test_a_gpu_on_a_bus_that_is_cut_falls_off_it(machine: EmulatedMachine) -> None:
    machine.set("gpu1-pcie1", {"state": "down"})
    assert "Xid (PCI:" in log_of(machine)
    machine.set("gpu1-pcie1", {"state": "up"})
    assert log_of(machine) == ""


def test_a_log_that_nobody_reads_keeps_the_latest(machine: EmulatedMachine) -> None:
    for number in range(1, 1001):
        machine.set("gpu0", {"xid": str(number)})
    lines = log_of(machine).splitlines()
    assert "): 1000, " in lines[-1]
    assert len(lines) < 1000


# -- files and processes -----------------------------------------------------------------------------------------------


def homes() -> set[str]:
    """Of this process: other tests have machines at the same time."""
    return {path.name for path in MEMORY.glob(f"media-observatory-machine-{os.getpid()}-*")}


def test_nothing_is_left_after_it_is_switched_off(tmp_path: Path) -> None:
    before = homes()
    machine = EmulatedMachine(two_gpus(), None, tmp_path / "state/machine").start()
    assert "MEDIA_OBSERVATORY_MACHINE" in os.environ
    assert (machine.folder.resolve().stat().st_mode & 0o077) == 0
    machine.close()
    machine.close()
    assert "MEDIA_OBSERVATORY_MACHINE" not in os.environ
    assert not machine.folder.exists()
    assert list((tmp_path / "state").iterdir()) == []
    assert homes() <= before
    with pytest.raises(CannotEmulate, match="is off"):
        machine.set("gpu0-gpu1", {"width": "6"})


def test_what_a_killed_machine_left_is_removed_by_the_next(tmp_path: Path) -> None:
    script = (
        "import os, signal\nfrom pathlib import Path\nfrom chaos.machine.machine import EmulatedMachine\n"
        "from tests.machine.machines import two_gpus\n"
        f"EmulatedMachine(two_gpus(), None, Path({str(tmp_path / 'machine')!r})).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=100)
    assert done.returncode == -9
    left = (tmp_path / "machine").resolve()
    assert (left / "machine").exists()
    with EmulatedMachine(two_gpus(), None, tmp_path / "other") as machine:
        assert not left.exists() or left == tmp_path / "machine"
        assert machine.link(NVLINK).state == "up"
    with EmulatedMachine(two_gpus(), None, tmp_path / "machine") as machine:
        assert (machine.root / "sys/bus/pci/devices").is_dir()


def test_another_process_finds_the_machine_by_its_library_path(machine: EmulatedMachine) -> None:
    """As a person's own script would: without the environment variable, the library finds what lies beside it."""
    script = (
        "import pynvml as nvml\nnvml.nvmlInit()\nfirst = nvml.nvmlDeviceGetHandleByIndex(0)\n"
        "print(nvml.nvmlDeviceGetCount(), nvml.nvmlDeviceGetName(first))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "MEDIA_OBSERVATORY_MACHINE"}
    environment["LD_LIBRARY_PATH"] = str(machine.nvml_library.parent)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=100, check=True
    )
    assert done.stdout == "2 NVIDIA A100-SXM4-40GB\n"


def test_a_folder_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotEmulate, match="cannot be made"):
        EmulatedMachine(two_gpus(), None, tmp_path / "file" / "machine").start()


@pytest.mark.parametrize("node", ["n7"])
def test_a_machine_that_the_topology_does_not_have_is_refused(node: str, tmp_path: Path) -> None:
    with pytest.raises(CannotEmulate, match="no machine 'n7'"):
        EmulatedMachine(two_gpus(), None, tmp_path / "machine", node)
    with pytest.raises(CannotEmulate, match="has no machine"):
        EmulatedMachine(Topology(nodes=(), devices=()), None, tmp_path / "machine")


def test_only_gpus_of_nvidia_are_seen_by_nvml(tmp_path: Path) -> None:
    assert len(EmulatedMachine(two_gpus("AMD Instinct MI300X"), None, tmp_path / "a").plan.gpus) == 0
    assert len(EmulatedMachine(load_topology(), None, tmp_path / "b").plan.gpus) == 8


def test_one_machine_of_a_cluster_is_emulated(tmp_path: Path) -> None:
    topology = two_gpus()
    cluster = topology.model_copy(update={"nodes": (Node(id="n9"), *topology.nodes)})
    assert EmulatedMachine(cluster, None, tmp_path / "a").plan.gpus == ()
    assert len(EmulatedMachine(cluster, None, tmp_path / "b", "n0").plan.gpus) == 2


def test_the_library_is_c_only() -> None:
    """Its only exported names are NVML's, and the one that tells its layout: it may stand in any process."""
    from chaos.machine.library import nvml_library

    library = ctypes.CDLL(str(nvml_library()))
    assert hasattr(library, "nvmlInit_v2")
    assert not hasattr(library, "machine_open")
