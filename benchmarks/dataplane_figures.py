"""The results of `script/bench dataplane` as figures with their goals, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.dataplane_kills import ZEROS
from benchmarks.dataplane_rounds import SIZES, best_ring, ratio, values
from benchmarks.dataplane_transports import BY_NAME
from benchmarks.report import spread

CLASSES = {"fifo": "SCHED_FIFO", "other": "the default class"}
WORDS = {name: transport.words for name, transport in BY_NAME.items()} | {"futex": "bare futex, in C++"}
UNMEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line: `reached` is None where it was not measured or has no goal."""

    what: str
    measured: str
    goal: str = ""
    reached: bool | None = None

    def row(self) -> str:
        """As a line of Markdown."""
        said = "" if self.reached is None else "yes" if self.reached else "**no**"
        return f"| {self.what} | {self.measured} | {self.goal} | {said} |"


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """All figures, in the order of the table."""
    found: list[Figure] = []
    if rounds := results.get("transports"):
        found += _hand_over(rounds)
        found += _throughput(rounds)
    for part, make in PARTS.items():
        if (document := results.get(part)) is not None:
            found += [Figure(part, f"{UNMEASURED}: {document['missing']}")] if "missing" in document else make(document)
    return found


# -- side by side ------------------------------------------------------------------------------------------------------


def _ratio_figure(what: str, found: Mapping[str, float] | None, goal: float, at_least: bool = False) -> Figure:
    words = f"{'>=' if at_least else '<='} {goal:g}x"
    if found is None:
        return Figure(what, UNMEASURED, words)
    reached = found["median"] >= goal if at_least else found["median"] <= goal
    return Figure(what, f"{found['median']:.2f}x ({found['min']:.2f}-{found['max']:.2f})", words, reached)


def _hand_over(rounds: Mapping[str, Any]) -> Iterator[Figure]:
    measured = rounds["cells"]
    main = rounds["classes"][0]

    def over(ours: tuple[str, str], theirs: tuple[str, str]) -> dict[str, float] | None:
        return ratio(measured, main, "latency", "p50_seconds", ours, theirs)

    for size in rounds["sizes"]:
        what = f"blocking hand-over p50, {size}, over"
        yield _ratio_figure(f"{what} iceoryx2 (event)", over((size, "ring"), (size, "iceoryx2-event")), 0.7)
        yield _ratio_figure(f"{what} a bare futex", over((size, "ring"), ("64 B", "futex")), 1.5)
    for size in rounds["sizes"]:
        what = f"spinning hand-over p50, {size}, over iceoryx2 (polling)"
        yield _ratio_figure(what, over((size, "ring-spinning"), (size, "iceoryx2-polling")), 0.3)
    for name, words in (("ring", "blocking"), ("ring-spinning", "spinning")):
        what = f"p50 at 50 MB over p50 at 64 B, {words}"
        yield _ratio_figure(what, over(("8K", name), ("64 B", name)), 1.3)


def _throughput(rounds: Mapping[str, Any]) -> Iterator[Figure]:
    measured, main = rounds["cells"], rounds["classes"][0]
    peers = {
        "4K": (("iceoryx2-event", 1.2), ("iceoryx2-polling", 1.2), ("shared-memory-queue", 3.0)),
        "8K": (("iceoryx2-event", 1.25), ("iceoryx2-polling", 1.25), ("shared-memory-queue", 2.0)),
    }
    for size, goals in peers.items():
        if size not in rounds["sizes"]:
            continue
        ours = best_ring(measured, main, size)
        for peer, goal in goals:
            found = ratio(measured, main, "throughput", "frames_per_second", (size, ours), (size, peer))
            yield _ratio_figure(f"{size} frames/s, {WORDS[ours]}, over {WORDS[peer]}", found, goal, at_least=True)
    for ours, ceiling in (("ring-huge", "ceiling-huge"), ("ring", "ceiling")):
        if "8K" in rounds["sizes"]:
            found = ratio(measured, main, "throughput", "frames_per_second", ("8K", ours), ("8K", ceiling))
            what = f"8K frames/s, {WORDS[ours]}, over no synchronisation on the same pages"
            yield _ratio_figure(what, found, 0.9, at_least=True)


# -- the ring alone ----------------------------------------------------------------------------------------------------


def _slot_calls(found: Mapping[str, Any]) -> Iterator[Figure]:
    four, named = found["four_calls"], found["four_calls_in_variables"]
    words = f"{four['median']:.0f} ns ({four['min']:.0f}-{four['max']:.0f}); in variables {named['median']:.0f} ns"
    yield Figure("the four slot calls from Python", words, "<= 250 ns", four["median"] <= 250)


def _attach(found: Mapping[str, Any]) -> Iterator[Figure]:
    for pages, words in (("huge", "2 MB pages"), ("small", "4 KiB pages")):
        what = f"attaching 50 MB, {words}: map all of it"
        goal = "<= 50 us" if pages == "huge" else ""
        if "missing" in found[pages]:
            yield Figure(what, f"{UNMEASURED}: {found[pages]['missing']}", goal)
            continue
        p50 = found[pages]["p50_seconds"]
        said = f"p50 {p50 * 1e6:.0f} us, p99 {found[pages]['p99_seconds'] * 1e6:.0f} us"
        yield Figure(what, said, goal, p50 <= 50e-6 if goal else None)


def _calls(found: Mapping[str, Any]) -> Iterator[Figure]:
    said = f"producer {found['producer']:g}, consumer {found['consumer']:g}, of {found['frames']:,} frames"
    yield Figure("system calls per frame, spinning", said, "0", found["producer"] == found["consumer"] == 0)


def _fan_out(found: Mapping[str, Any]) -> Iterator[Figure]:
    for kind, words in (("awake", "readers awake"), ("asleep", "all readers asleep")):
        one = found[kind]
        each = " / ".join(f"{one[key]['median'] * 1e6:.2f}" for key in ("many_seconds", "one_seconds"))
        figure = _ratio_figure(f"publish to {one['readers']} readers over 1, {words}", one["ratio"], 2.0)
        yield Figure(figure.what, f"{figure.measured}; {each} us", figure.goal, figure.reached)
    copies = sum(found[kind]["copies"] for kind in ("awake", "asleep"))
    yield Figure("copies for 8 readers", str(copies), "0", copies == 0)


# -- deaths and moves --------------------------------------------------------------------------------------------------


def _kills(found: Mapping[str, Any]) -> Iterator[Figure]:
    for part, words in (("points", "kill -9 at every failpoint of every actor"), ("storm", "kill -9 at random")):
        document = found[part]
        zeros = {name: document.get(name) for name in ZEROS}
        said = ", ".join(f"{'unknown' if value is None else value} {name}" for name, value in zeros.items())
        count = document.get("kills")
        known = None not in zeros.values()
        reached = all(value == 0 for value in zeros.values()) if known else None
        if problem := document.get("problem"):
            said, reached = f"{said}; {problem}", False
        yield Figure(f"{words}: {'?' if count is None else f'{count:,}'} kills", said, "all 0", reached)
        if (p99 := document.get("reclaim_p99_seconds")) is not None:
            said = f"p50 {document['reclaim_p50_seconds'] * 1e3:.3f} ms, p99 {p99 * 1e3:.3f} ms"
            yield Figure(f"reclaim after the pidfd, {words}", said, "p99 <= 1 ms", p99 <= 1e-3)


def _restarts(found: Mapping[str, Any]) -> Iterator[Figure]:
    said = f"p50 {found['p50_seconds'] * 1e3:.0f} ms, p99 {found['p99_seconds'] * 1e3:.0f} ms"
    seen = found["kills"] - found["unseen"]
    yield Figure(f"a killed worker's successor at work, abr-ladder, {seen} kills", said)
    zero = found["lost"] == found["duplicates"] == 0
    what = f"frames in the files after {found['kills']} kills"
    yield Figure(what, f"{found['lost']} lost, {found['duplicates']} duplicate", "0, 0", zero)


def _migration(found: Mapping[str, Any]) -> Iterator[Figure]:
    for kind, words in (("idle", "idle machine"), ("hog", "beside a CPU hog")):
        one = found[kind]
        zeros = [one[name] for name in ("lost", "duplicate", "reordered")]
        said = ", ".join(
            f"{value} {name}" for value, name in zip(zeros, ("lost", "duplicate", "reordered"), strict=True)
        )
        yield Figure(f"migration, {words}, {one['moves']} moves", said, "all 0", not any(zeros))
        said = f"p50 {one['p50_seconds'] * 1e3:.2f} ms, p99 {one['p99_seconds'] * 1e3:.2f} ms"
        yield Figure(f"gap that consumers see over a move, {words}, {one['seen']} seen", said)


PARTS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Figure]]] = {
    "slot-calls": _slot_calls,
    "attach": _attach,
    "system-calls": _calls,
    "fan-out": _fan_out,
    "kills": _kills,
    "restarts": _restarts,
    "migration": _migration,
}


# -- Markdown ----------------------------------------------------------------------------------------------------------


def markdown(results: Mapping[str, Any]) -> str:
    """The whole section: figures and goals, then what each transport does."""
    lines = ["| figure | measured | goal | reached |", "|---|---|---|---|"]
    lines += [figure.row() for figure in figures(results)]
    if rounds := results.get("transports"):
        for scheduling in rounds["classes"]:
            lines += ["", *_latency_table(rounds, scheduling)]
        lines += ["", *_throughput_table(rounds)]
        lines += ["", *(f"- Not measured: {WORDS[name]}: {why}." for name, why in rounds["left_out"].items())]
        lines += [f"- {note}" for note in rounds["notes"]]
    return "\n".join(lines)


def _latency_table(rounds: Mapping[str, Any], scheduling: str) -> Iterator[str]:
    sizes: Sequence[str] = rounds["sizes"]
    yield f"Hand-over, one way, p50 / p99 in us, {CLASSES[scheduling]} ({rounds['rounds']} rounds; medians over them):"
    yield ""
    yield f"| transport | {' | '.join(_size_words(size) for size in sizes)} |"
    yield "|---" * (len(sizes) + 1) + "|"
    for name in rounds["latency"]:
        row = [_microseconds(rounds["cells"], scheduling, size, name) for size in sizes]
        if any(row):
            yield f"| {WORDS[name]} | {' | '.join(row)} |"


def _microseconds(measured: Mapping[str, Any], scheduling: str, size: str, name: str) -> str:
    both = [values(measured, scheduling, "latency", size, name, key) for key in ("p50_seconds", "p99_seconds")]
    if not all(both):
        return ""
    return " / ".join(f"{spread(one)['median'] * 1e6:.1f}" for one in both)


def _throughput_table(rounds: Mapping[str, Any]) -> Iterator[str]:
    sizes: Sequence[str] = rounds["sizes"]
    scheduling = rounds["classes"][0]
    yield f"Frames/s, each written and read whole, {CLASSES[scheduling]} (median, smallest and largest round):"
    yield ""
    yield f"| transport | {' | '.join(_size_words(size) for size in sizes)} |"
    yield "|---" * (len(sizes) + 1) + "|"
    for name in rounds["throughput"]:
        row = []
        for size in sizes:
            found = values(rounds["cells"], scheduling, "throughput", size, name, "frames_per_second")
            one = spread(found) if found else None
            row.append(f"{one['median']:,.0f} ({one['min']:,.0f}-{one['max']:,.0f})" if one else "")
        if any(row):
            yield f"| {WORDS[name]} | {' | '.join(row)} |"


def _size_words(size: str) -> str:
    count = SIZES[size]
    return size if count < 1000 else f"{count / 1e6:.1f} MB ({size} NV12)"
