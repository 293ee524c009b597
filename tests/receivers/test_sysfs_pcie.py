"""PCI Express links from sysfs, made up and recorded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from observatory.receivers import sysfs_pcie
from observatory.receivers.errors import ReceiverUnavailable
from observatory.receivers.sysfs_pcie import SysfsPcie
from tests.receivers.looking import Told, look
from tests.topology.sysfs_trees import MachineTree, recorded, write

GPU = "0000:01:00.0"
PORT = "0000:00:01.0"


@pytest.fixture
def machine(tmp_path: Path) -> MachineTree:
    """A root port of 16 lanes at 16 GT/s, a card of 16 lanes at 32 GT/s on it."""
    tree = MachineTree(tmp_path / "sys")
    tree.bridge(f"pci0000:00/{PORT}", now=("16.0 GT/s PCIe", "16"), best=("16.0 GT/s PCIe", "16"))
    tree.function(
        f"pci0000:00/{PORT}/{GPU}",
        "030200",
        now=("16.0 GT/s PCIe", "16"),
        best=("32.0 GT/s PCIe", "16"),
        aer_dev_correctable="RxErr 3\nBadTLP 4\nTOTAL_ERR_COR 7",
        aer_dev_nonfatal="Undefined 0\nTOTAL_ERR_NONFATAL 1",
        aer_dev_fatal="Undefined 0\nTOTAL_ERR_FATAL 2",
    )
    return tree


def look_each_time(root: Path, *changes: object) -> list[Told]:
    return look(SysfsPcie, root, *changes, again=rescan)  # type: ignore[arg-type]


def rescan(receiver: object) -> None:
    """What comes to a folder is looked for every two seconds: now."""
    assert isinstance(receiver, SysfsPcie)
    receiver._watch._due = 0.0


def test_what_a_link_runs_at_and_its_best(machine: MachineTree) -> None:
    (told,) = look(SysfsPcie, machine.root.parent)
    assert told == {
        (GPU, "link.width"): 16.0,
        (GPU, "link.speed"): 16e9,
        (GPU, "link.up"): 1.0,
        (GPU, "link.width.best"): 16.0,
        (GPU, "link.speed.best"): 16e9,  # the port's, which is less than the card's
        (GPU, "link.errors aer_corrected"): 7.0,
        (GPU, "link.errors aer_nonfatal"): 1.0,
        (GPU, "link.errors aer_fatal"): 2.0,
    }


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [
        ("16 GT/s", "8", (16e9, 8.0)),
        ("2.5 GT/s PCIe", "1", (2.5e9, 1.0)),
        ("Unknown", "0", (None, None)),
        ("Unknown speed", "255", (None, None)),
        ("Unknown", "63", (None, None)),
        ("16.0 GT/s PCIe", "x16", (16e9, None)),
        ("16", "16", (None, 16.0)),
        ("99.0 GT/s PCIe", "17", (None, None)),
        ("", "-1", None),
    ],
)
def test_every_way_to_write_speed_and_width(
    machine: MachineTree, speed: str, width: str, expected: tuple[float | None, float | None] | None
) -> None:
    folder = machine.root / f"bus/pci/devices/{GPU}"
    (folder / "current_link_speed").write_text(f"{speed}\n" if speed else "")
    write(folder / "current_link_width", width)
    (told,) = look(SysfsPcie, machine.root.parent)
    if expected is None:  # a file that somebody is just writing
        assert (GPU, "link.width") not in told
    else:
        assert (told[GPU, "link.speed"], told[GPU, "link.width"]) == expected


@pytest.mark.parametrize("how", ["in place", "by another file"])
def test_a_change_is_seen_at_the_next_look(machine: MachineTree, how: str) -> None:
    file = machine.root / f"bus/pci/devices/{GPU}/current_link_width"

    def change() -> None:
        if how == "in place":
            write(file, "8")
        else:
            write(file.with_name("new"), "8")
            file.with_name("new").replace(file)

    first, second = look(SysfsPcie, machine.root.parent, change)
    assert (first[GPU, "link.width"], second[GPU, "link.width"]) == (16.0, 8.0)


def test_a_card_that_does_not_answer_any_more(machine: MachineTree) -> None:
    folder = machine.root / f"bus/pci/devices/{GPU}"

    def falls_off() -> None:  # reads of its registers give all ones
        write(folder / "current_link_width", "63")
        write(folder / "current_link_speed", "Unknown")

    first, second = look(SysfsPcie, machine.root.parent, falls_off)
    assert first[GPU, "link.up"] == 1.0
    assert second[GPU, "link.up"] == 0.0
    assert second[GPU, "link.width"] is None


def test_a_card_that_goes_and_comes_back(machine: MachineTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.function("pci0000:00/0000:00:02.0/0000:02:00.0", "020000", now=("8.0 GT/s", "4"))
    machine.bridge("pci0000:00/0000:00:02.0", best=("8.0 GT/s", "4"))
    folder = machine.root / f"devices/pci0000:00/{PORT}/{GPU}"
    link = machine.root / f"bus/pci/devices/{GPU}"
    points = link.readlink()

    def removed() -> None:
        link.unlink()
        shutil.move(folder, tmp_path / "away")

    def rescanned() -> None:
        shutil.move(tmp_path / "away", folder)
        link.symlink_to(points)

    def a_minute_later() -> None:
        monkeypatch.setattr(sysfs_pcie, "_GONE_SECONDS", 0.0)

    before, without, later, after = look_each_time(machine.root.parent, removed, a_minute_later, rescanned)
    assert (GPU, "link.up") not in later
    assert (before[GPU, "link.up"], without[GPU, "link.up"], after[GPU, "link.up"]) == (1.0, 0.0, 1.0)
    assert (GPU, "link.width") not in without
    assert without["0000:02:00.0", "link.width"] == 4.0


def test_what_has_no_link_of_its_own_is_left_out(machine: MachineTree) -> None:
    folder = machine.function(f"pci0000:00/{PORT}/0000:01:00.4", "020000", now=("Unknown", "0"))
    (folder / "physfn").symlink_to(f"../{GPU}")
    machine.function("pci0000:00/0000:00:1f.0", "060100")
    (told,) = look(SysfsPcie, machine.root.parent)
    assert {key for key, _ in told} == {GPU}


def test_a_domain_of_32_bits(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path / "sys")
    tree.bridge("pci10000:e0/10000:e0:02.0", best=("8.0 GT/s", "4"))
    tree.function("pci10000:e0/10000:e0:02.0/10000:e1:00.0", "010802", now=("8.0 GT/s", "4"))
    (told,) = look(SysfsPcie, tmp_path)
    assert told["10000:e1:00.0", "link.width"] == 4.0


def test_a_machine_without_links_says_why(tmp_path: Path) -> None:
    MachineTree(tmp_path / "sys")
    with pytest.raises(ReceiverUnavailable, match="shows no PCI Express link"):
        look(SysfsPcie, tmp_path)


def test_more_files_than_may_be_open(machine: MachineTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysfs_pcie, "PolledFiles", lambda root: _few(root))
    first, second = look(
        SysfsPcie, machine.root.parent, lambda: write(machine.root / f"bus/pci/devices/{GPU}/current_link_width", "4")
    )
    assert (first[GPU, "link.width"], second[GPU, "link.width"]) == (16.0, 4.0)


def _few(root: Path) -> object:
    from observatory.receivers.polled_files import PolledFiles

    return PolledFiles(root, most_open=1)


def test_a_recorded_machine(tmp_path: Path) -> None:
    """Read off by hand: a disk on 4 lanes at 8 GT/s, which is its best and the port's; no error yet."""
    root = recorded("sysfs-ib/procfs_fixtures.ttar", tmp_path)
    (told,) = look(SysfsPcie, root)
    assert {metric: value for (key, metric), value in told.items() if key == "0000:01:00.0"} == {
        "link.width": 4.0,
        "link.speed": 8e9,
        "link.up": 1.0,
        "link.width.best": 4.0,
        "link.speed.best": 8e9,
        "link.errors aer_corrected": 0.0,
        "link.errors aer_nonfatal": 0.0,
        "link.errors aer_fatal": 0.0,
    }
    assert ("0000:00:02.1", "link.width") not in told  # the port's link is the disk's
