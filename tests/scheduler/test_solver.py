"""Placement: against brute force, by hand, and what it says when it cannot."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from observatory.model.cost import CostParameters, LinkCoefficients, transfer_seconds
from observatory.model.device import Device, DeviceKind
from observatory.model.link import LinkKind
from observatory.model.pipeline import Edge, LocalityHint, Qos, TopologyConstraint
from observatory.model.plan import DecisionRecord
from observatory.model.topology import Topology
from observatory.topology.load import load_topology
from scheduler.decision_schema import schema
from scheduler.errors import ImpossiblePlacement
from scheduler.evaluate import Evaluator
from scheduler.heft import rank_order, upward_ranks
from scheduler.problem import build_problem
from scheduler.profiles import service_time
from scheduler.schedule import schedule_of
from scheduler.solver import place
from tests.scheduler.support import (
    EVERYWHERE,
    Job,
    device,
    job,
    link,
    random_job,
    random_machine,
    star,
    video,
)

FULL_HD = video(1920, 1080)
PARAMETERS = CostParameters()


def solved(work: Job, topology: Topology, parameters: CostParameters = PARAMETERS) -> DecisionRecord:
    placement, record = place(work.pipeline, work.edges, topology, parameters, work.types)
    assert record.final_placement == {f"test/{name}": d for name, d in placement.devices.items()}
    return record


# -- an independent reference: no code of the scheduler but its service-time table ------------------------------------


def seconds_between(topology: Topology, a: str, b: str, payload: int) -> float:
    """In a star every path is the two links of its ends."""
    if a == b:
        return 0.0
    by_end = {lk.a: lk for lk in topology.links}
    return transfer_seconds([by_end[a], by_end[b]], payload, PARAMETERS)


def best_makespan(work: Job, topology: Topology) -> float:
    """Over all placements and all orders: every task starts on the first free lane when its inputs are there."""
    names = [o.name for o in work.pipeline.operators]
    orders = [
        order
        for order in itertools.permutations(range(len(names)))
        if all(order.index(names.index(e.producer)) < order.index(names.index(e.consumer)) for e in work.edges)
    ]
    best = float("inf")
    for chosen in itertools.product(topology.devices, repeat=len(names)):
        for order in orders:
            best = min(best, run_in_order(work, topology, chosen, order))
    return best


def run_in_order(work: Job, topology: Topology, chosen: Sequence[Device], order: Sequence[int]) -> float:
    names = [o.name for o in work.pipeline.operators]
    finish: dict[str, float] = {}
    free = {d.id: [0.0] * d.engines[0].count for d in topology.devices}
    for t in order:
        node, place_ = work.pipeline.operators[t], chosen[t]
        arrivals = [
            finish[e.producer]
            + seconds_between(topology, chosen[names.index(e.producer)].id, place_.id, e.bytes_per_frame)
            for e in work.edges
            if e.consumer == node.name
        ]
        sizes = [pixels(e) for e in work.edges if e.consumer == node.name] or [
            pixels(e) for e in work.edges if e.producer == node.name
        ]
        service = service_time(node.op, place_.kind, max(sizes, default=1920 * 1080), {}).seconds
        lanes = free[place_.id]
        lane = min(range(len(lanes)), key=lambda i: lanes[i])
        start = max([lanes[lane], *arrivals])
        lanes[lane] = finish[node.name] = start + service
    return max(finish.values())


def pixels(edge: Edge) -> int:
    assert edge.format.kind == "video"
    return edge.format.width * edge.format.height


@pytest.mark.parametrize("seed", range(25))
def test_makespan_is_between_the_optimum_and_twice_it(seed: int) -> None:
    rng = random.Random(seed)
    work, machine = random_job(rng, 5), random_machine(rng, 3)
    record = solved(work, machine)
    optimum = best_makespan(work, machine)
    assert record.makespan_seconds is not None
    assert optimum * (1 - 1e-9) <= record.makespan_seconds <= 2 * optimum


def test_a_worked_example() -> None:
    """Decode -> scale -> encode, 1080p in and 720p between, by hand.

    cpu0 and gpu0 hang on one switch by links of 10 GB/s and 1 us. The GPU decodes (1.3 ms) and scales (0.05 ms) but has
    no encoder, so that one frame of 1280 x 720 crosses: 1 382 400 B / 10 GB/s = 138.24 us, plus 2 x 1 us = 140.24 us.
    The CPU encodes with x264 veryfast, its default: 12.9 ms at 1080p, 4/9 of that at 720p = 5.733 ms.
    """
    machine = star([device("n0/cpu0", compute=4), device("n0/gpu0", compute=1, decode=2)])
    work = job(
        [("d", "decode", []), ("s", "scale", ["d"]), ("e", "encode", ["s"])],
        engines={"decode": {"cpu": "compute", "gpu": "decode"}, "encode": {"cpu": "compute", "gpu": "encode"}},
        formats={"d": FULL_HD},
    )
    record = solved(work, machine)
    assert record.final_placement == {"test/d": "n0/gpu0", "test/s": "n0/gpu0", "test/e": "n0/cpu0"}
    first, second = record.edges
    assert (first.edge, first.path, first.predicted_seconds, first.share) == ("d->s", (), 0.0, 0.0)
    assert second.path == ("n0/gpu0--n0/sw:pcie", "n0/cpu0--n0/sw:pcie")
    assert second.bytes_per_frame == 1_382_400
    assert second.predicted_seconds == pytest.approx(140.24e-6)
    assert (second.share, record.predicted_cost) == (1.0, second.predicted_seconds)
    assert record.makespan_seconds == pytest.approx(1.3e-3 + 0.05e-3 + 140.24e-6 + 12.9e-3 * 4 / 9)
    assert (record.lower_bound, record.gap) == (0.0, 1.0)  # all on cpu0 would cost no transfer
    # Next best by one move: scaling on the CPU, 0.77 ms and the whole frame (313.04 us) over the link.
    assert record.runner_up == {"test/d": "n0/gpu0", "test/s": "n0/cpu0", "test/e": "n0/cpu0"}
    scores = {(c.operator, c.device): c for c in record.score_breakdown}
    assert scores["e", "n0/gpu0"].rejected == "it has no encode engine"
    assert scores["d", "n0/cpu0"].finish_seconds == pytest.approx(2.7e-3)
    assert scores["s", "n0/cpu0"].finish_seconds == pytest.approx(1.3e-3 + 313.04e-6 + 0.77e-3)
    assert record.input_topology_matrix["seconds"][0][1] == pytest.approx(2**20 / 1e10 + 2e-6)
    assert record.candidate_nodes == ("n0",)
    jsonschema.validate(record.model_dump(mode="json"), schema())


def test_calibrated_parameters_reach_the_prediction() -> None:
    machine = star([device("n0/cpu0", compute=1), device("n0/gpu0", compute=1)])
    work = job([("a", "x", []), ("b", "x", ["a"])], pins={"a": "n0/cpu0", "b": "n0/gpu0"})
    parameters = CostParameters(
        software_seconds_per_message=5e-6, by_kind={LinkKind.PCIE: LinkCoefficients(alpha=3, beta=2)}
    )
    record = solved(work, machine, parameters)
    assert record.predicted_cost == pytest.approx(5e-6 + 3 * 2e-6 + 2 * 1_382_400 / 1e10)
    assert record.cost_parameters == parameters


# -- properties ---------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 5))
def test_a_placement_is_always_valid(seed: int, tasks: int, devices: int) -> None:
    rng = random.Random(seed)
    work, machine = random_job(rng, tasks), random_machine(rng, devices)
    record = solved(work, machine)
    again = solved(work, machine)
    assert again.final_placement == record.final_placement  # deterministic
    assert set(record.final_placement) == {f"test/{o.name}" for o in work.pipeline.operators}
    assert set(record.final_placement.values()) <= {d.id for d in machine.devices}
    assert {e.edge for e in record.edges} == {e.name for e in work.edges}
    for cost in record.edges:
        expected = seconds_between(machine, cost.producer_device, cost.consumer_device, cost.bytes_per_frame)
        assert cost.predicted_seconds == pytest.approx(expected)
        assert cost.producer_device == record.final_placement[f"test/{cost.edge.split('->')[0]}"]
    assert record.predicted_cost == pytest.approx(sum(e.predicted_seconds for e in record.edges))
    assert record.lower_bound is not None
    assert record.lower_bound <= record.predicted_cost
    if record.runner_up is not None:
        changed = [k for k, v in record.runner_up.items() if v != record.final_placement[k]]
        assert len(changed) == 1
    loads: dict[str, float] = {}
    for node in work.pipeline.operators:
        where = machine.device(record.final_placement[f"test/{node.name}"])
        assert where is not None
        sizes = [pixels(e) for e in work.edges if e.consumer == node.name] or [
            pixels(e) for e in work.edges if e.producer == node.name
        ]
        service = service_time(node.op, where.kind, max(sizes, default=1920 * 1080), {}).seconds
        loads[where.id] = loads.get(where.id, 0.0) + service * 30
    if not any("keeps up" in w for w in record.unmet_wishes):
        assert all(load <= machine.device(d).engines[0].count * 1.001 for d, load in loads.items())  # type: ignore[union-attr]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.permutations(range(4)))
def test_renaming_devices_permutes_the_placement(seed: int, shuffle: list[int]) -> None:
    rng = random.Random(seed)
    work, machine = random_job(rng, 6), random_machine(rng, 4)
    names = {d.id: f"n0/{d.kind.value}{50 + shuffle[i]}" for i, d in enumerate(machine.devices)}
    renamed = Topology(
        name="star",
        nodes=machine.nodes,
        devices=tuple(d.model_copy(update={"id": names[d.id]}) for d in machine.devices),
        vertices=machine.vertices,
        links=tuple(lk.model_copy(update={"a": names[lk.a]}) for lk in machine.links),
    )
    before, after = solved(work, machine), solved(work, renamed)
    assert after.final_placement == {op: names[d] for op, d in before.final_placement.items()}
    assert after.makespan_seconds == before.makespan_seconds


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 4))
def test_the_fast_evaluation_agrees_with_the_schedule(seed: int, tasks: int, devices: int) -> None:
    rng = random.Random(seed)
    work, machine = random_job(rng, tasks), random_machine(rng, devices)
    problem = build_problem(work.pipeline, work.edges, machine, PARAMETERS, work.types)
    order = rank_order(upward_ranks(problem, tuple(frozenset(c) for c in problem.candidates)))
    scale = rng.choice([0.1, 1.0, 30.0])
    evaluator = Evaluator(problem, order, (), penalty_scale=1.0, rate_scale=scale)
    placement = [rng.randrange(devices) for _ in range(tasks)]
    worth, schedule = evaluator.worth(placement), schedule_of(problem, order, placement, scale)
    if isinstance(schedule, str):
        assert worth is None
    else:
        assert worth is not None
        assert worth[0] == schedule.makespan
        starts = {t: s.start for t, s in schedule.slots.items()}
        for flow in problem.flows:
            moved = problem.transfer(flow.payload_bytes, placement[flow.producer], placement[flow.consumer])
            assert moved is not None
            assert starts[flow.consumer] >= schedule.slots[flow.producer].finish + moved - 1e-12


# -- constraints, wishes, caps ------------------------------------------------------------------------------------

LADDER = [
    ("d", "decode", []),
    ("s", "scale", ["d"]),
    ("e", "encode", ["s"]),
    ("m", "mux", ["e"]),
]
ENGINES = {
    "decode": {"cpu": "compute", "gpu": "decode", "vpu": "decode"},
    "scale": {"cpu": "compute", "gpu": "compute"},
    "encode": {"cpu": "compute", "gpu": "encode", "vpu": "encode"},
    "mux": {"cpu": "compute"},
}


def constraint(kind: str, members: str, weight: float | None = None, value: str | None = None) -> TopologyConstraint:
    return TopologyConstraint.model_validate(
        {"type": kind, "members": members.split(), "weight": weight, "value": value}
    )


def test_the_eight_gpu_node_encodes_where_there_is_an_encoder() -> None:
    record = solved(job(LADDER, engines=ENGINES), load_topology())
    assert record.final_placement["test/m"].startswith("n0/cpu")
    assert record.final_placement["test/e"].startswith(("n0/vpu", "n0/cpu"))
    rejected = {c.device: c.rejected for c in record.score_breakdown if c.operator == "e"}
    assert {rejected[f"n0/gpu{i}"] for i in range(8)} == {"it has no encode engine"}
    assert rejected["n0/nic0"] == "a nic runs no operators"
    assert record.unmet_wishes == ()


def test_a_pin_is_kept_and_named_when_it_binds() -> None:
    record = solved(job(LADDER, engines=ENGINES, pins={"s": "n0/cpu1"}), load_topology())
    assert record.final_placement["test/s"] == "n0/cpu1"
    assert record.binding_constraint is not None
    assert "pinned to n0/cpu1" in record.binding_constraint


@pytest.mark.parametrize(
    ("kind", "members", "value"),
    [
        ("Socket", "d s e m", None),
        ("Socket", "d s e m", "n0/socket1"),
        ("NUMA_Node", "s m", "n0/numa1"),
        ("PCIe_Switch", "d s e", None),
        ("NVLink_Domain", "d s", None),
        ("Device_Kind", "d e", "cpu"),
        ("Node", "d s e m", None),
    ],
)
def test_hard_constraints_are_kept(kind: str, members: str, value: str | None) -> None:
    from observatory.topology.domains import Domains

    topology = load_topology()
    record = solved(job(LADDER, engines=ENGINES, constraints=[constraint(kind, members, value=value)]), topology)
    domains = Domains(topology)
    found = {domains.of(record.final_placement[f"test/{m}"], kind) for m in members.split()}
    assert len(found) == 1
    assert None not in found
    assert value is None or found == {value}
    assert record.unmet_wishes == ()


def test_two_hard_constraints_at_once() -> None:
    both = [constraint("Socket", "d m"), constraint("NVLink_Domain", "d s", value="n0/nvswitch0")]
    record = solved(job(LADDER, engines=ENGINES, constraints=both), load_topology())
    assert record.final_placement["test/d"].startswith("n0/gpu")
    side = int(record.final_placement["test/d"][-1]) // 4
    assert record.final_placement["test/m"] == f"n0/cpu{side}"


def test_a_wish_that_pays_is_kept_and_one_that_cannot_be_is_reported() -> None:
    soft = [constraint("Device_Kind", "s", 100, "cpu"), constraint("CXL_Memory_Node", "d", 80)]
    hints = [LocalityHint(operators=("s", "m"), prefer="same-device")]
    record = solved(job(LADDER, engines=ENGINES, constraints=soft, hints=hints), load_topology())
    assert record.final_placement["test/s"].startswith("n0/cpu")
    assert record.final_placement["test/s"] == record.final_placement["test/m"]
    assert record.unmet_wishes == ("CXL_Memory_Node for d (weight 80)",)


def test_a_weak_wish_gives_way() -> None:
    machine = star([device("n0/cpu0", compute=4), device("n0/gpu0", compute=1)])
    work = job(
        [("a", "super_res", []), ("b", "mux", ["a"])],
        engines={"mux": {"cpu": "compute"}},
        constraints=[constraint("Device_Kind", "a", 1, "cpu")],
    )
    record = solved(work, machine)
    assert record.final_placement["test/a"] == "n0/gpu0"
    assert record.unmet_wishes == ("Device_Kind cpu for a (weight 1)",)


def test_capacity_spreads_operators_over_engines() -> None:
    """At 2500 frames/s a blend (0.24 ms) keeps 0.6 of a core busy: two need two cores."""
    machine = star([device("n0/cpu0", compute=1), device("n0/cpu1", compute=1)])
    work = job(
        [("d", "mux", []), ("e", "blend", ["d"]), ("f", "blend", ["d"])],
        formats={"d": FULL_HD},
        qos=Qos(frames_per_second=2500),
    )
    record = solved(work, machine)
    assert record.final_placement["test/e"] != record.final_placement["test/f"]


def test_a_rate_that_is_asked_for_is_hard() -> None:
    machine = star([device("n0/cpu0", compute=1)])
    work = job([("d", "decode", []), ("s", "scale", ["d"])], formats={"d": FULL_HD}, qos=Qos(frames_per_second=500))
    with pytest.raises(ImpossiblePlacement) as caught:
        solved(work, machine)
    assert "at 500 frames/s" in caught.value.message
    assert "d (decode) alone needs: n0/cpu0 1.35 of 1 compute engines" in caught.value.message
    assert (caught.value.file, caught.value.line) == ("p.yaml", 10)


def test_a_rate_that_is_not_asked_for_gives_way_and_that_is_said() -> None:
    machine = star([device("n0/cpu0", compute=1)])
    fast = video(1920, 1080, 500)
    work = job([("d", "decode", []), ("s", "scale", ["d"])], formats={"d": fast})
    record = solved(work, machine)
    assert record.unmet_wishes == ("no placement keeps up with 500 frames/s; placed for 250 frames/s",)
    assert record.binding_constraint is not None
    assert "engine capacity" in record.binding_constraint


def test_an_unknown_rate_is_said() -> None:
    record = solved(job([("a", "scale", []), ("b", "scale", ["a"])], rate=None), star([device("n0/cpu0", compute=1)]))
    assert "the frame rate of a, b is unknown: 30 frames/s assumed" in record.notes


def test_a_deadline_that_is_missed_is_reported() -> None:
    machine = star([device("n0/cpu0", compute=1)])
    work = job([("e", "encode", []), ("m", "mux", ["e"])], formats={"e": FULL_HD}, qos=Qos(deadline_seconds=0.01))
    assert solved(work, machine).unmet_wishes == ("deadline of 0.01 s: a frame is predicted to take 0.0129 s",)


def test_memory_is_a_hard_cap() -> None:
    machine = star([device("n0/cpu0", compute=8, memory=8_000_000), device("n0/cpu1", compute=8, memory=8_000_000)])
    work = job([("a", "scale", []), ("b", "scale", ["a"]), ("c", "mux", ["b"])])  # 4 x 1.38 MB for a, and for b
    record = solved(work, machine)
    assert record.final_placement["test/a"] != record.final_placement["test/b"]


def test_sessions_are_a_hard_cap() -> None:
    from observatory.model.device import Engine, EngineKind

    def machine(sessions: int) -> Topology:
        engine = Engine(kind=EngineKind.ENCODE, count=8, sessions=sessions)
        return star([device("n0/gpu0").model_copy(update={"engines": (engine,)}), device("n0/cpu0", compute=64)])

    encoders = [(f"e{i}", "encode", ["d"]) for i in range(3)]
    work = job([("d", "decode", []), *encoders], engines={"decode": {"cpu": "compute"}, "encode": {"gpu": "encode"}})
    record = solved(work, machine(3))
    assert {record.final_placement[f"test/e{i}"] for i in range(3)} == {"n0/gpu0"}
    with pytest.raises(ImpossiblePlacement):
        solved(work, machine(2))


def test_caps_that_mislead_a_greedy_choice_are_backtracked() -> None:
    """super_res is ranked first and would take the only device on which decode can run; it has to go elsewhere."""
    machine = star([device("n0/gpu0", compute=1), device("n0/vpu0", compute=1)])
    work = job(
        [("a", "super_res", []), ("b", "decode", ["a"])],
        engines={"decode": {"gpu": "compute"}},
        qos=Qos(frames_per_second=740),
        formats={"a": FULL_HD},
    )
    # gpu: super_res 1 ms -> 0.74, decode 1.3 ms -> 0.96 of one engine: not both. vpu: 2 ms, too slow.
    with pytest.raises(ImpossiblePlacement):
        solved(work, machine)
    slower = work.pipeline.model_copy(update={"qos": Qos(frames_per_second=490)})
    _, record = place(slower, work.edges, machine, PARAMETERS, work.types)
    assert record.final_placement == {"test/a": "n0/vpu0", "test/b": "n0/gpu0"}


def test_devices_joined_by_unknown_links_are_not_used_together() -> None:
    machine = star([device("n0/cpu0", compute=1), device("n0/gpu0", compute=1)])
    machine = machine.model_copy(update={"links": (link("n0/cpu0", "n0/sw", None, 1e-6), machine.links[1])})
    work = job([("a", "super_res", []), ("b", "mux", ["a"])], engines={"mux": {"cpu": "compute"}})
    record = solved(work, machine)
    assert set(record.final_placement.values()) == {"n0/cpu0"}
    assert record.predicted_cost == 0.0
    pinned = job(
        [("a", "super_res", []), ("b", "mux", ["a"])], engines={"mux": {"cpu": "compute"}}, pins={"a": "n0/gpu0"}
    )
    with pytest.raises(ImpossiblePlacement) as caught:
        solved(pinned, machine)
    assert "cannot be predicted" in caught.value.message


# -- what is said when nothing fits -------------------------------------------------------------------------------

IMPOSSIBLE = {
    "no engine anywhere": (
        job(LADDER, engines={**ENGINES, "encode": {"gpu": "encode"}}),
        ["e (encode) can run nowhere", "8 gpu (n0/gpu0, n0/gpu1, n0/gpu2, n0/gpu3, ...): it has no encode engine"],
        12,
    ),
    "pinned where it cannot run": (
        job(LADDER, engines=ENGINES, pins={"e": "n0/gpu3"}),
        ["e (encode) can run nowhere", "2 vpu (n0/vpu0, n0/vpu1): the operator is pinned to n0/gpu3"],
        12,
    ),
    "pinned to nothing": (job(LADDER, engines=ENGINES, pins={"d": "n0/gpu9"}), ["n0/gpu9, which the topology"], 10),
    "kind that cannot": (
        job(LADDER, engines=ENGINES, constraints=[constraint("Device_Kind", "e", value="gpu")]),
        ["e (encode) can run nowhere", "Device_Kind asks for gpu", "no encode engine"],
        12,
    ),
    "no common domain": (
        job(LADDER, engines=ENGINES, constraints=[constraint("NVLink_Domain", "d e")]),
        [
            "the hard constraint NVLink_Domain for d, e cannot be kept",
            "d can run only on n0/cpu0, n0/cpu1, n0/gpu0, n0/gpu1 (in n0/nvswitch0)",
            "e can run only on n0/cpu0, n0/cpu1, n0/vpu0, n0/vpu1 (in no such domain)",
        ],
        10,
    ),
    "unknown domain": (
        job(LADDER, engines=ENGINES, constraints=[constraint("Socket", "d", value="n0/socket7")]),
        ["Socket names 'n0/socket7'"],
        None,
    ),
    "constraints that clash": (
        job(
            LADDER,
            engines=ENGINES,
            constraints=[constraint("Socket", "d", value="n0/socket0"), constraint("NUMA_Node", "d", value="n0/numa1")],
        ),
        ["Socket n0/socket0 for d", "NUMA_Node n0/numa1 for d"],
        None,
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_impossible_placements_say_why(case: str) -> None:
    work, words, line = IMPOSSIBLE[case]
    with pytest.raises(ImpossiblePlacement) as caught:
        solved(work, load_topology())
    for part in words:
        assert part in caught.value.message
    assert caught.value.exit_code == 2
    assert caught.value.mend
    if line is not None:
        assert (caught.value.file, caught.value.line) == ("p.yaml", line)


def test_the_published_schema_is_up_to_date() -> None:
    from pathlib import Path

    from scheduler.decision_schema import text

    published = Path(__file__).parents[2] / "docs/reference/decision-record.schema.json"
    assert published.read_text() == text(), "python -m scheduler.decision_schema > docs/reference/..."


def test_every_engine_kind_of_the_profiles_is_positive() -> None:
    for kind in DeviceKind:
        for op in ("decode", "encode", "scale", "mux", "no such operator"):
            for size in (1, 640 * 360, 1920 * 1080, 7680 * 4320):
                assert service_time(op, kind, size, {}).seconds > 0
    assert service_time("encode", DeviceKind.CPU, 1920 * 1080, {"preset": "veryfast"}).origin == "measured"
    x265 = service_time("encode", DeviceKind.CPU, 1920 * 1080, {"codec": "libx265", "preset": "medium"})
    assert x265.seconds == pytest.approx(6.9 * 12.9e-3)
    assert x265.origin == "estimate"
    assert service_time("encode", DeviceKind.VPU, 1920 * 1080, {}).origin == "estimate"
    assert EVERYWHERE.keys() <= {k.value for k in DeviceKind}
