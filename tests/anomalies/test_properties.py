"""What holds whatever is told: no crash, no burst without growth, one incident per flapping link, no order."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from observatory.anomalies.counters import Counters
from observatory.anomalies.watch import IncidentWatch
from observatory.model.hardware_metrics import METRICS
from observatory.model.observation import Address, AddressKind, HardwareEvent, Observation, Seen
from tests.anomalies.feeding import PERIOD_NS, SECOND_NS

COUNTERS = ("ecc_uncorrected", "ecc_corrected", "aer_fatal", "aer_corrected", "out_of_sequence", "link_downed", "crc")
BLANKS = (None, float("nan"), float("inf"), -1.0, 9223372036854775794.0, 18446744073709551615.0, 4294967295.0)

few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
addresses = st.builds(
    Address,
    st.sampled_from(["n0", "n1"]),
    st.sampled_from(list(AddressKind)),
    st.sampled_from(["", "0", "0000:3b:00.0", "0000:3b:00.0/7", "mlx5_0/1", "eth0", "x"]),
)
numbers = st.one_of(st.none(), st.floats(), st.integers(-5, 5).map(float), st.sampled_from(BLANKS))
attributes = st.dictionaries(
    st.sampled_from(
        ["error.type", "hw.state", "reason", "network.io.direction", "hw.gpu.task", "resource", "numa.kind"]
    ),
    st.sampled_from(["ecc_uncorrected", "failed", "hw_slowdown", "receive", "general", "memory", "miss", "", "\x00"]),
)


@st.composite
def anything(draw: st.DrawFn) -> list[list[Seen]]:
    """Batches of whatever receivers could tell."""
    value = st.builds(
        Observation, addresses, st.sampled_from([*METRICS, "no.such.metric"]), numbers, st.integers(0, 10**12),
        st.sampled_from(["nvml", "sysfs"]), attributes,
    )  # fmt: skip
    event = st.builds(
        HardwareEvent, addresses,
        st.sampled_from(["xid", "sxid", "aer", "edac", "mce", "gpu_lost", "interface", "pcie_link", "rdma", "?"]),
        st.text(max_size=20), st.integers(0, 10**12), st.just("kmsg"),
        st.one_of(st.none(), st.sampled_from(["79", "48", "down", "up", "ce", "ue", "corrected", "-1", "9" * 30])),
        attributes,
    )  # fmt: skip
    return draw(st.lists(st.lists(st.one_of(value, event), max_size=8), max_size=12))


@few
@given(anything())
def test_nothing_that_is_told_breaks_the_watch(batches: list[list[Seen]]) -> None:
    watch = IncidentWatch()
    for number, batch in enumerate(batches):
        for incident in watch.see(batch, number * PERIOD_NS):
            assert 0 <= incident.confidence < 1
            assert incident.evidence
    watch.see([], 10**13)


@few
@given(
    st.sampled_from(COUNTERS),
    st.lists(st.one_of(st.sampled_from(BLANKS), st.integers(0, 10**6).map(float)), min_size=1, max_size=20),
)
def test_counters_that_never_grow_open_nothing(name: str, told: list[float | None]) -> None:
    """Values only fall (resets), with blanks and lies between them."""
    known = sorted((v for v in told if v is not None and v not in BLANKS), reverse=True)
    falling = iter(known)
    values = [v if v is None or v in BLANKS or v != v else next(falling) for v in told]
    watch = IncidentWatch()
    subject = Address("n0", AddressKind.PCI, "0000:3b:00.0")
    for number, value in enumerate(values):
        at_ns = number * PERIOD_NS
        for metric in ("hw.errors", "link.errors"):
            watch.see([Observation(subject, metric, value, at_ns, "sysfs", {"error.type": name})], at_ns)
    assert [i.kind for i in watch.open if i.kind not in ("telemetry_unreliable", "telemetry_lost")] == []


@few
@given(st.lists(st.integers(0, 1 << 40), min_size=2, max_size=30), st.sampled_from([32, 64]))
def test_a_counter_never_grows_by_more_than_it_was_told(steps: list[int], bits: int) -> None:
    counters = Counters(most_per_second=1e9)
    counted, value = 0.0, 0
    for number, step in enumerate(steps):
        value = (value + step) % (1 << bits)
        grew = counters.grew("a", float(value), number * SECOND_NS)
        counted += 0.0 if grew is None else grew[0]
    assert 0 <= counted <= sum(steps) * (1 + 1e-9)


@few
@given(st.lists(st.booleans(), min_size=10, max_size=200))
def test_a_flapping_link_is_at_most_one_incident(up: list[bool]) -> None:
    watch = IncidentWatch()
    port = Address("n0", AddressKind.PORT, "mlx5_0/1")
    ids = set()
    for number, state in enumerate(up):
        at_ns = number * SECOND_NS // 10
        watch.see([Observation(port, "hw.network.up", float(state), at_ns, "infiniband")], at_ns)
        assert len(watch.open) <= 1
        ids |= {i.id for i in watch.open}
    assert len(ids) <= 1


@few
@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_the_order_of_subjects_within_a_look_does_not_matter(random: object, troubles: list[int]) -> None:
    def batches(shuffled: bool) -> list[list[Seen]]:
        made = []
        for number in range(3):
            parts = [_trouble(index, kind, number) for index, kind in enumerate(troubles)]
            if shuffled:
                random.shuffle(parts)  # type: ignore[attr-defined]
            made.append([seen for part in parts for seen in part])
        return made

    def found(shuffled: bool) -> list[dict[str, object]]:
        watch = IncidentWatch()
        for number, batch in enumerate(batches(shuffled)):
            watch.see(batch, number * PERIOD_NS)
        return [incident.model_dump() for incident in watch.open]

    assert found(shuffled=True) == found(shuffled=False)


def _trouble(index: int, kind: int, number: int) -> list[Seen]:
    """One subject of its own with one of a few troubles that begin at the second look."""
    at_ns = number * PERIOD_NS
    card = Address("n0", AddressKind.PCI, f"0000:{index:02x}:00.0")
    port = Address("n0", AddressKind.PORT, f"mlx5_{index}/1")
    bad = number > 0
    if kind == 0:
        return [
            Observation(card, "link.width.best", 16, at_ns, "nvml"),
            Observation(card, "link.width", 8 if bad else 16, at_ns, "nvml"),
        ]
    if kind == 1:
        return [Observation(port, "hw.network.up", float(not bad), at_ns, "infiniband")]
    if kind == 2:
        return [Observation(card, "hw.errors", 5.0 * number, at_ns, "nvml", {"error.type": "ecc_uncorrected"})]
    if kind == 3:
        return [HardwareEvent(card, "xid", "NVRM: Xid", at_ns, "kmsg", "119")] if bad else []
    return [Observation(card, "link.width", 16, at_ns, "nvml")]
