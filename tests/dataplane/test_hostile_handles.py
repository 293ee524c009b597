"""Descriptors that are no consumer pages, or pages that could be pulled away: refused, and nothing is kept of them."""

from __future__ import annotations

import fcntl
import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane.exchange import Subscriber

from .exchange_stage import PAGE_BYTES, ForgedPage, Intruder, Stage, hello, seals_of, stage, until

SHRINK, GROW = fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cam.sock"


@pytest.fixture
def scene(path: Path) -> Iterator[Stage]:
    with stage(path, slots=12) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for many tests: at the end the honest reader must have had every frame, whatever was tried."""
    with stage(tmp_path_factory.mktemp("exchange") / "cam.sock", slots=12) as made:
        yield made
        made.check()


def memfd(size: int, seals: int = SHRINK | GROW, flags: int = 0) -> int:
    fd = os.memfd_create("other", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def reopened(policy: str, flags: int) -> int:
    page = ForgedPage(policy)
    fd = os.open(f"/proc/self/fd/{page.fd}", flags)
    page.close()
    return fd


def page(policy: str = "drop_oldest", /, **damage: int) -> int:
    return os.dup(ForgedPage(policy, **damage).fd)


def regular_file() -> int:
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.ftruncate(fd, PAGE_BYTES)
    return fd


def epoll() -> int:
    with select.epoll() as made:
        return os.dup(made.fileno())


OTHER_THINGS: dict[str, Callable[[], int]] = {
    "a pipe": lambda: os.pipe2(os.O_CLOEXEC)[0],
    "a regular file": regular_file,
    "a folder": lambda: os.open("/", os.O_RDONLY),
    "a device": lambda: os.open("/dev/zero", os.O_RDWR),
    "a socket": lambda: socket.socket(socket.AF_UNIX).detach(),
    "an epoll": epoll,
    "an eventfd": lambda: os.eventfd(0),
    "a pidfd": lambda: os.pidfd_open(os.getpid()),
    "a memfd that cannot be sealed": lambda: os.memfd_create("plain", 0),
    "another memfd": lambda: memfd(PAGE_BYTES),
    "an empty memfd": lambda: memfd(0),
    "a short page": lambda: page(size=100),
    "a page that is one byte short": lambda: page(size=PAGE_BYTES - 1),
    "a page without seals": lambda: page(seals=0),
    "a page that may shrink": lambda: page(seals=GROW),
    "a page of another kind": lambda: page(magic=0x4D4F5247),
    "a page without a name": lambda: page(page_id=0),
    "a page of no policy": lambda: page("drop_oldest", policy=2),
    "a page for the other policy": lambda: page("block"),
    "a page that cannot be written": lambda: reopened("drop_oldest", os.O_RDONLY),
    "a name only": lambda: reopened("drop_oldest", os.O_PATH),
}


@pytest.mark.parametrize("thing", OTHER_THINGS)
def test_what_is_no_page_of_ours_is_refused(shared: Stage, thing: str) -> None:
    shared.publish(5)
    fd = OTHER_THINGS[thing]()
    with Intruder(shared.out.path) as intruder:
        intruder.send(hello(), fd)
        assert intruder.refused() == "page"
    os.close(fd)
    shared.publish(20)
    assert shared.codes == []


@pytest.mark.parametrize("which", [0, 1])
def test_the_publishers_own_memory_is_no_page(scene: Stage, path: Path, which: int) -> None:
    with Intruder(path) as inside, Intruder(path) as intruder:
        inside.enter()
        intruder.send(hello(), inside.handles[which])  # its ring; its slab
        assert intruder.refused() == "page"
        scene.publish(20)
        scene.check()


def test_a_page_on_huge_pages_is_refused(scene: Stage, path: Path) -> None:
    """Without the check, a hole in it would be a SIGBUS for the publisher where no huge page is left."""
    try:
        fd = memfd(2 << 20, flags=os.MFD_HUGETLB)
    except OSError:
        pytest.skip("this kernel has no huge pages at all")
    with Intruder(path) as intruder:
        intruder.send(hello(), fd)
        assert intruder.refused() == "page"
    os.close(fd)
    scene.publish(5)
    scene.check()


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_a_page_cannot_be_cut_short_while_it_is_used(scene: Stage, path: Path, policy: str) -> None:
    with Intruder(path) as intruder:
        intruder.enter(policy)
        scene.publish(3)
        for way in (intruder.page.fd, f"/proc/self/fd/{intruder.page.fd}"):
            with pytest.raises(PermissionError):
                os.truncate(way, 0)
        with pytest.raises(PermissionError):
            os.close(os.open(f"/proc/self/fd/{intruder.page.fd}", os.O_RDWR | os.O_TRUNC))
        intruder.close()
        scene.publish(20)
        scene.check()


def test_the_same_page_does_not_get_in_twice(scene: Stage, path: Path) -> None:
    with Intruder(path) as first, Intruder(path) as second:
        first.enter()
        second.send(hello(), first.page.fd)
        assert second.refused() == "page"
        scene.publish(5)
        first.close()
        until(lambda: len(scene.out.consumers) == 1)
        scene.publish(5)
        scene.check()


@pytest.mark.parametrize("count", [0, 2, 3, 60])
def test_the_wrong_number_of_descriptors(scene: Stage, path: Path, count: int) -> None:
    read, write = os.pipe()
    with Intruder(path) as intruder:
        intruder.send(hello(), *[write] * count)
        assert intruder.refused() == "malformed"
    os.close(write)
    assert os.read(read, 1) == b""  # every copy is closed
    os.close(read)
    scene.publish(5)
    scene.check()


def test_descriptors_on_their_way_when_the_connection_closes_are_not_kept(scene: Stage, path: Path) -> None:
    read, write = os.pipe()
    for _ in range(50):
        with Intruder(path) as intruder:
            intruder.send(hello(), write)
        with Intruder(path) as intruder:
            intruder.send(b'{"type"', write)
        with Intruder(path) as intruder:
            intruder.send(hello(), intruder.page.fd)
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)
    scene.publish(5)
    with Subscriber(path, wait_seconds=30):
        pass
    scene.check()


def test_a_page_as_it_should_be_gets_in(scene: Stage, path: Path) -> None:
    """That the forged pages above are refused for what is wrong with them, and for nothing else."""
    for policy in ("block", "drop_oldest"):
        with Intruder(path) as intruder:
            forged = ForgedPage(policy, seals=seals_of(policy))
            intruder.send(hello(policy), forged.fd)
            assert intruder.hears()["type"] == "welcome"
            forged.close()
    scene.publish(5)
    scene.check()
