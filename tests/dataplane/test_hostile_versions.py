"""Peers with another protocol or other layouts: refused by either side, with both numbers and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.exchange import OtherVersion, Subscriber
from dataplane.exchange.handshake import PROTOCOL, layouts

from .exchange_stage import ForgedPage, Intruder, Stage, hello, stage
from .fake_publisher import FakePublisher, welcome

NOW = layouts()
FIRST = dict.fromkeys(NOW, 1)  # as all were in the beginning
RING = NOW["mo_ring_header"]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("exchange") / "cam.sock", slots=12) as made:
        yield made
        made.check()


OTHERS: list[tuple[dict[str, object], str, str]] = [
    ({"layouts": FIRST}, f"version 1 of mo_ring_header, the publisher {RING}", "subscriber"),
    ({"layouts": {**NOW, "mo_descriptor": RING + 1}}, f"version {RING + 1} of mo_descriptor", "publisher"),
    ({"layouts": {}}, "version unknown of mo_ring_header", "subscriber"),
    ({"layouts": None}, "version unknown of mo_ring_header", "subscriber"),
    ({"layouts": {**NOW, "mo_consumer_page": "2"}}, "version unknown of mo_consumer_page", "subscriber"),
    ({"protocol": 0}, f"version 0 of protocol, the publisher {PROTOCOL}", "subscriber"),
    ({"protocol": PROTOCOL + 1}, f"version {PROTOCOL + 1} of protocol, the publisher {PROTOCOL}", "publisher"),
    ({"protocol": None}, "version unknown of protocol", "subscriber"),
]


@pytest.mark.parametrize(("said", "words", "older"), OTHERS)
def test_a_subscriber_of_another_version(scene: Stage, said: dict[str, object], words: str, older: str) -> None:
    with Intruder(scene.out.path) as intruder:
        intruder.send({**hello(), **said}, intruder.page.fd)
        answer = intruder.hears()
        assert (answer["type"], answer["code"]) == ("refused", "version")
        assert words in answer["message"]
        assert f"that of the {older} is older" in answer["mend"]
        assert answer["layouts"] == NOW  # so that an other version can say it in its words
        assert answer["protocol"] == PROTOCOL
        scene.publish(5)


def test_a_page_of_another_version_than_was_said(scene: Stage) -> None:
    with Intruder(scene.out.path) as intruder:
        old = ForgedPage("drop_oldest", abi=1)
        intruder.send(hello(), old.fd)
        answer = intruder.hears()
        assert (answer["type"], answer["code"]) == ("refused", "version")
        assert f"layout version 1, this program has {RING}" in answer["message"]
        old.close()
        scene.publish(5)


@pytest.mark.parametrize(("said", "words", "older"), OTHERS)
def test_a_publisher_of_another_version(tmp_path: Path, said: dict[str, object], words: str, older: str) -> None:
    path = tmp_path / "cam.sock"
    other = {"publisher": "subscriber", "subscriber": "publisher"}[older]
    with FakePublisher(path, {**welcome(), **said}), pytest.raises(OtherVersion) as refused:
        Subscriber(path)
    assert words.replace("the publisher", "the subscriber") in str(refused.value)
    assert f"that of the {other} is older" in str(refused.value.mend)


def test_being_refused_by_a_publisher_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "cam.sock"
    said = {"type": "refused", "code": "version", "message": "too old for me", "mend": "come again", "future": [1]}
    with FakePublisher(path, said, []), pytest.raises(OtherVersion, match="too old for me") as refused:
        Subscriber(path)
    assert refused.value.mend == "come again"


def test_a_ring_of_another_version_than_was_said(tmp_path: Path) -> None:
    path = tmp_path / "cam.sock"
    with FakePublisher(path, welcome()) as fake:
        fake.store("abi", 1)
        with pytest.raises(Exception, match=f"layout version 1, this program has {RING}"):
            Subscriber(path)
