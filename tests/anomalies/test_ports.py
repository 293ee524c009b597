"""Ports that are down, slow or come and go: damping, unused sockets, cards that are gone."""

from __future__ import annotations

from observatory.anomalies.subjects import PlainSubjects
from observatory.model.observation import Address, AddressKind
from tests.anomalies.feeding import GPU, PORT, SECOND_NS, Feed, opened

INTERFACE = Address("n0", AddressKind.INTERFACE, "ib0")


def test_a_port_that_was_up_is_missed_at_once_and_back_after_its_hold() -> None:
    feed = Feed()
    feed.look(feed.value(PORT, "hw.network.up", 1))
    assert opened(feed.look(feed.value(PORT, "hw.network.up", 0))) == [("link_down", "n0:port:mlx5_0/1")]
    feed.look(feed.value(PORT, "hw.network.up", 1))
    assert feed.kinds() == ["link_down"]
    for _ in range(9):
        feed.look(feed.value(PORT, "hw.network.up", 1))
    assert feed.open == []


def test_an_unused_socket_is_no_fault_until_something_is_expected_of_it() -> None:
    feed = Feed()
    feed.look(feed.value(PORT, "hw.network.up", 0))
    assert feed.open == []
    feed.look(feed.value(PORT, "link.bandwidth.best", 25e9, "manifest"))
    assert feed.kinds() == ["link_down"]


def test_an_interface_that_is_down_with_its_port_adds_nothing() -> None:
    feed = Feed(PlainSubjects({str(INTERFACE): str(PORT)}))
    feed.look(feed.value(PORT, "hw.network.up", 1), feed.value(INTERFACE, "hw.network.up", 1))
    feed.look(feed.value(INTERFACE, "hw.network.up", 0, "interfaces"))
    feed.look(feed.value(PORT, "hw.network.up", 0))
    (incident,) = feed.open
    assert (incident.subject, incident.affected) == ("n0:port:mlx5_0/1", ("n0:interface:ib0",))
    merged = [i for i in feed.changed if i.subject == "n0:interface:ib0"][-1]
    assert (merged.state, incident.id in merged.words) == ("closed", True)


def test_a_port_at_half_its_rate() -> None:
    feed = Feed()
    feed.look(feed.value(PORT, "hw.network.bandwidth.limit", 25e9))
    (incident,) = feed.look(feed.value(PORT, "hw.network.bandwidth.limit", 12.5e9))
    assert (incident.kind, incident.words) == ("port_degraded", "100 of 200 Gb/s")


def test_sources_that_round_rates_differently_do_not_contradict_each_other() -> None:
    feed = Feed()
    for _ in range(3):
        feed.look(
            feed.value(PORT, "hw.network.bandwidth.limit", 7.0e9, "infiniband"),
            feed.value(PORT, "hw.network.bandwidth.limit", 5.0e9, "interfaces"),
        )
    assert feed.open == []


def test_a_link_that_flaps_is_one_incident_and_is_held() -> None:
    feed = Feed()
    feed.look(feed.value(PORT, "hw.network.up", 1))
    for number in range(600):  # ten times a second, for a minute
        feed.look(feed.value(PORT, "hw.network.up", number % 2), step_ns=SECOND_NS // 10)
        assert len(feed.open) <= 1
    for _ in range(290):
        feed.look(feed.value(PORT, "hw.network.up", 1), step_ns=SECOND_NS)
    assert feed.kinds() == ["link_down"]  # damped: five minutes of quiet
    (incident,) = feed.open
    assert incident.flaps > 100
    for _ in range(20):
        feed.look(feed.value(PORT, "hw.network.up", 1), step_ns=SECOND_NS)
    assert feed.open == []
    assert len({i.id for i in feed.changed if i.kind == "link_down"}) == 1


def test_a_link_that_comes_back_within_five_minutes_is_the_same_incident() -> None:
    feed = Feed()
    feed.look(feed.value(PORT, "hw.network.up", 1))
    for _ in range(2):
        feed.look(feed.value(PORT, "hw.network.up", 0))
        for _ in range(60):
            feed.look(feed.value(PORT, "hw.network.up", 1), step_ns=SECOND_NS)
    assert len({i.id for i in feed.changed if i.kind == "link_down"}) == 1
    (incident,) = feed.open
    assert incident.flaps == 1  # twice in five minutes: held although it is up for a minute


def test_a_counter_tells_of_a_flap_that_no_look_saw() -> None:
    feed = Feed()
    feed.look(feed.value(PORT, "link.errors", 7, "infiniband", error__type="link_downed"))
    assert feed.open == []
    feed.look(feed.value(PORT, "link.errors", 8, "infiniband", error__type="link_downed"))
    assert feed.kinds() == ["link_flapping"]


def test_the_kernel_tells_that_a_link_went_down() -> None:
    feed = Feed()
    feed.look(feed.event(INTERFACE, "interface", "ib0: link becomes ready", "up"))
    feed.look(feed.event(INTERFACE, "interface", "ib0: Link down", "down"))
    assert feed.kinds() == ["link_down"]


def test_a_card_that_does_not_answer_on_the_bus_is_lost() -> None:
    feed = Feed()
    feed.look(feed.value(GPU, "link.up", 1, "sysfs-pcie"))
    assert opened(feed.look(feed.value(GPU, "link.up", 0, "sysfs-pcie"))) == [("device_lost", "n0:pci:0000:3b:00.0")]


def test_a_flap_that_state_and_counter_tell_of_is_damped_too() -> None:
    feed = Feed()
    for number in range(6):
        for up in (1, 0):
            feed.look(
                feed.value(PORT, "hw.network.up", up, "infiniband"),
                feed.value(PORT, "link.errors", number + (not up), "infiniband", error__type="link_downed"),
                step_ns=SECOND_NS // 2,
            )
    for _ in range(200):
        feed.look(feed.value(PORT, "hw.network.up", 1, "infiniband"), step_ns=SECOND_NS)
    (incident,) = feed.open
    assert (incident.subject, incident.flaps) == ("n0:port:mlx5_0/1", 5)


def test_a_state_and_a_counter_of_one_moment_are_no_flap() -> None:
    feed = Feed()
    for up, downed in ((1, 3), (0, 3), (0, 4)):
        feed.look(
            feed.value(PORT, "link.errors", downed, "infiniband", error__type="link_downed"),
            feed.value(PORT, "hw.network.up", up, "infiniband"),
        )
    (incident,) = feed.open
    assert (incident.kind, incident.flaps) == ("link_down", 0)


def test_down_and_up_in_one_look_is_told_and_over() -> None:
    feed = Feed()
    feed.look(feed.event(INTERFACE, "interface", "ib0: Link up", "up"))
    feed.look(feed.event(INTERFACE, "interface", "down", "down"), feed.event(INTERFACE, "interface", "up", "up"))
    assert feed.kinds() == ["link_down"]
    feed.wait(3)
    assert feed.open == []


def test_a_port_whose_fall_the_counter_told_of_too_is_not_over_before_it_is_up() -> None:
    feed = Feed()

    def look(up: int, downed: int) -> None:
        feed.look(
            feed.value(PORT, "hw.network.up", up, "infiniband"),
            feed.value(PORT, "link.errors", downed, "infiniband", error__type="link_downed"),
            step_ns=SECOND_NS,
        )

    look(up=1, downed=3)
    for _ in range(190):
        look(up=0, downed=4)
    back_at = feed.now_ns / SECOND_NS
    for _ in range(5):
        look(up=1, downed=4)
    assert feed.open == []
    assert feed.changed[-1].closed_at == back_at + 2  # the hold of a link that was down


def test_an_incident_that_is_only_held_says_that_it_is_well_and_since_when() -> None:
    feed = Feed()
    feed.look(feed.value(PORT, "hw.network.up", 1))
    for _ in range(2):
        feed.look(feed.value(PORT, "hw.network.up", 0), step_ns=SECOND_NS)
        assert (feed.open[0].well_since, "well again" in feed.open[0].words) == (None, False)
        up_at = feed.now_ns / SECOND_NS
        feed.look(feed.value(PORT, "hw.network.up", 1), step_ns=10 * SECOND_NS)
        feed.look(feed.value(PORT, "hw.network.up", 1), step_ns=10 * SECOND_NS)
    (incident,) = feed.open
    assert incident.well_since == up_at
    assert incident.words.endswith("; well again since, closed after 300 s without it")
    assert feed.changed[-1] == incident  # it was told, not only shown to who asks
    feed.look(feed.value(PORT, "hw.network.up", 0))
    assert feed.changed[-1].well_since is None
    assert "well again" not in feed.changed[-1].words


def test_of_an_error_that_happened_once_nothing_tells_that_it_is_well() -> None:
    feed = Feed()
    feed.look(feed.event(GPU, "xid", "NVRM: Xid ...", "119"))
    feed.wait(300)
    assert feed.open[0].well_since is None
    assert "well again" not in feed.open[0].words


VETH = Address("n0", AddressKind.INTERFACE, "veth1")


def test_an_interface_that_was_taken_away_is_not_down_for_ever() -> None:
    feed = Feed()

    def look(*veth: int) -> None:
        feed.look(
            feed.value(INTERFACE, "hw.network.up", 1, "interfaces"),
            *(feed.value(VETH, "hw.network.up", up, "interfaces") for up in veth),
            step_ns=SECOND_NS,
        )

    look(1)
    feed.look(feed.event(VETH, "interface", "veth1: Link down", "down"))
    look(0)
    for _ in range(55):
        look()
    assert feed.kinds() == ["link_down"]
    for _ in range(10):
        look()
    assert feed.open == []
    look(0)
    assert feed.open == [], "one that is made anew was never up"


def test_a_port_that_is_down_stays_so_while_it_is_told_or_its_source_is_silent() -> None:
    feed = Feed()
    feed.look(feed.value(INTERFACE, "hw.network.up", 1, "interfaces"), feed.value(PORT, "hw.network.up", 1, "ports"))
    for _ in range(100):
        feed.look(feed.value(INTERFACE, "hw.network.up", 0, "interfaces"), step_ns=SECOND_NS)
        feed.look(feed.value(VETH, "hw.network.up", 1, "interfaces"), feed.value(PORT, "hw.network.up", 0, "ports"))
    assert feed.kinds() == ["link_down", "link_down"]
    for _ in range(100):
        feed.look(feed.value(VETH, "hw.network.up", 1, "interfaces"), step_ns=SECOND_NS)
    assert [i.subject for i in feed.open if i.kind == "link_down"] == ["n0:port:mlx5_0/1"]


def test_a_pause_of_everything_takes_no_port_away() -> None:
    feed = Feed()
    both = (INTERFACE, PORT)
    feed.look(*(feed.value(at, "hw.network.up", 1) for at in both))
    feed.look(*(feed.value(at, "hw.network.up", at is PORT) for at in both))
    feed.now_ns += 3600 * SECOND_NS
    feed.look(feed.value(PORT, "hw.network.up", 1))
    feed.look(*(feed.value(at, "hw.network.up", at is PORT) for at in both))
    assert [i.subject for i in feed.open if i.kind == "link_down"] == ["n0:interface:ib0"]


def test_a_source_that_tells_of_each_port_seldom_and_apart_takes_none_away() -> None:
    feed = Feed()
    others = [Address("n0", AddressKind.PORT, f"mlx5_{n}/1") for n in range(1, 9)]
    for up in (1, 0, 0, 0):
        feed.look(feed.value(PORT, "hw.network.up", up, "exporter"), step_ns=10 * SECOND_NS)
        for other in others:
            feed.look(feed.value(other, "hw.network.up", 1, "exporter"), step_ns=10 * SECOND_NS)
    assert [i.subject for i in feed.open if i.kind == "link_down"] == ["n0:port:mlx5_0/1"]
