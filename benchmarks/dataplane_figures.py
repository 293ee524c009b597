"""The results of `script/bench dataplane` as figures with their goals, and as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.dataplane_kills import ZEROS
from benchmarks.dataplane_rounds import SIZES, ratio, values
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


def _ratio_figure(what: str, found: Mapping[str, float] | None, goal: float | None, at_least: bool = False) -> Figure:
    words = "" if goal is None else f"{'>=' if at_least else '<='} {goal:g}x"
    if found is None:
        return Figure(what, UNMEASURED, words)
    reached = None
    if goal is not None:
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
    """Like for like against the goals: 4 KiB pages, as the peers have; the ring's 2 MB pages in lines of their own."""
    measured, main = rounds["cells"], rounds["classes"][0]
    peers = {
        "4K": (("iceoryx2-event", 1.2), ("iceoryx2-polling", 1.2), ("shared-memory-queue", 3.0)),
        "8K": (("iceoryx2-event", 1.25), ("iceoryx2-polling", 1.25), ("shared-memory-queue", 2.0)),
    }

    def over(size: str, ours: str, theirs: str) -> dict[str, float] | None:
        return ratio(measured, main, "throughput", "frames_per_second", (size, ours), (size, theirs))

    for size, goals in peers.items():
        if size not in rounds["sizes"]:
            continue
        for peer, goal in goals:
            what = f"{size} frames/s, {WORDS['ring']}, over {WORDS[peer]}"
            yield _ratio_figure(what, over(size, "ring", peer), goal, at_least=True)
        for peer, _ in goals:
            what = f"{size} frames/s, {WORDS['ring-huge']}, over {WORDS[peer]} with 4 KiB pages"
            yield _ratio_figure(what, over(size, "ring-huge", peer), None)
    for ours, ceiling in (("ring", "ceiling"), ("ring-huge", "ceiling-huge")):
        if "8K" in rounds["sizes"]:
            what = f"8K frames/s, {WORDS[ours]}, over no synchronisation on the same pages"
            yield _ratio_figure(what, over("8K", ours, ceiling), 0.9, at_least=True)


# -- the ring alone ----------------------------------------------------------------------------------------------------

CALLS = {
    "four_calls": "leases in variables, asked for None: as operators are written",
    "four_calls_traced": "the same, traced",
    "four_calls_in_blocks": "the same, in `with` blocks",
    "four_calls_chained": "chained, nothing asked: the calls alone",
    "bare_call": "one call of a built-in method that does nothing",
}


def _slot_calls(found: Mapping[str, Any]) -> Iterator[Figure]:
    for name, words in CALLS.items():
        one = found[name]
        said = f"{one['median']:.0f} CPU ns ({one['min']:.0f}-{one['max']:.0f})"
        if name == "four_calls":
            yield Figure(f"four slot calls from Python, {words}", said, "<= 250 CPU ns", one["median"] <= 250)
        else:
            yield Figure(words if name == "bare_call" else f"four slot calls, {words}", said)


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

DEATHS = {
    "points": "kill -9 at every failpoint of every actor",
    "storm": "kill -9 at random",
    "storm_fifo": "kill -9 at random, SCHED_FIFO",
}
RECLAIM_SECONDS = 1e-3
GO_ON_SECONDS = 0.1


def _stopped(found: Mapping[str, Any]) -> Iterator[Figure]:
    said = f"{found['lost']} of {found['frames']:,} lost, producer waited {found['waits']} times"
    what = "a consumer under drop_oldest stopped, holding a frame: its sibling's frames"
    yield Figure(what, said, "0, 0", found["lost"] == found["waits"] == 0)
    each = " / ".join(
        f"{found[key]['p50_seconds'] * 1e6:.1f}, {found[key]['p99_seconds'] * 1e6:.1f}" for key in ("before", "stopped")
    )
    yield Figure("its sibling's hand-over p50, p99, before / while it is stopped", f"{each} us")


def _kills(found: Mapping[str, Any]) -> Iterator[Figure]:
    for part, words in DEATHS.items():
        if (document := found.get(part)) is None:
            continue
        zeros = {name: document.get(name) for name in ZEROS}
        said = ", ".join(f"{'unknown' if value is None else value} {name}" for name, value in zeros.items())
        count = document.get("kills")
        known = None not in zeros.values()
        reached = all(value == 0 for value in zeros.values()) if known else None
        if problem := document.get("problem"):
            said, reached = f"{said}; {problem}", False
        yield Figure(f"{words}: {'?' if count is None else f'{count:,}'} kills", said, "all 0", reached)
        yield _reclaim(f"reclaim after the pidfd, {words}", document)
        gap = document.get("worst_gap_seconds")
        said = UNMEASURED if gap is None else f"{gap * 1e3:.0f} ms"
        reached = None if gap is None else gap <= GO_ON_SECONDS
        yield Figure(f"longest that a survivor's edge had no frame, {words}", said, "<= 100 ms", reached)


def _reclaim(what: str, document: Mapping[str, Any]) -> Figure:
    p50, p99 = document.get("reclaim_p50_seconds"), document.get("reclaim_p99_seconds")
    if p50 is None or p99 is None:
        return Figure(what, UNMEASURED, "p99 <= 1 ms")
    return Figure(what, f"p50 {p50 * 1e3:.3f} ms, p99 {p99 * 1e3:.3f} ms", "p99 <= 1 ms", p99 <= RECLAIM_SECONDS)


def _restarts(found: Mapping[str, Any]) -> Iterator[Figure]:
    said = f"p50 {found['p50_seconds'] * 1e3:.0f} ms, p99 {found['p99_seconds'] * 1e3:.0f} ms"
    seen = found["kills"] - found["unseen"]
    yield Figure(f"a killed worker's successor at work, paced ladder, {seen} kills", said)
    zero = found["lost"] == found["duplicates"] == 0
    what = f"frames in the files after {found['kills']} kills"
    yield Figure(what, f"{found['lost']} lost, {found['duplicates']} duplicate", "0, 0", zero)
    for key, words in (("siblings", "that it did not feed"), ("downstream", "that it fed")):
        what = f"what a kill adds to the longest gap of survivors {words}"
        one = found.get(key)
        if one is None:
            yield Figure(what, UNMEASURED, "<= 100 ms")
            continue
        said = ", ".join(f"{name} {one[f'{name}_seconds'] * 1e3:.0f} ms" for name in ("p50", "max"))
        said += f", of {one['deaths']} kills; longest gap {one['longest_seconds'] * 1e3:.0f} ms"
        yield Figure(what, said, "<= 100 ms", one["max_seconds"] <= GO_ON_SECONDS)


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
    "stopped": _stopped,
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
