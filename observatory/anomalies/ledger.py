"""All incidents that are open: verdicts come in, incidents open, change, merge and close.

Verdicts of one group on one subject are one incident. What belongs to something that is lost adds nothing but itself to
that incident, and where everything that hangs on one switch or GPU is down, that one is to blame (`blame`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from observatory.anomalies.blame import Blame
from observatory.anomalies.case import LASTING, Case
from observatory.anomalies.finding import Finding
from observatory.anomalies.kinds import kind_named
from observatory.anomalies.open_cases import Key, OpenCases
from observatory.anomalies.settings import SECOND_NS, WatchSettings
from observatory.anomalies.subjects import Subjects
from observatory.model.incident import Incident

_TEND_EVERY_NS = 100_000_000  # closing late changes nothing: when an incident was over is known
_OF_THE_BUS = frozenset({"pcie_downtrained", "aer_storm", "aer_fatal"})
_PORT_GROUP = "port"
_LOST_GROUP = "lost"
_NVLINK_GROUP = "nvlink"
_NVLINK_ERRORS = "nvlink_errors"
_TOGETHER_NS = 5 * SECOND_NS  # an error that the driver tells and the link that went down with it: one trouble


class Ledger:
    """Open incidents by group and subject, and those closed lately, which may come back.

    `lasting` are subjects of incidents that end only when the hardware shows signs of life.
    """

    def __init__(self, settings: WatchSettings, subjects: Subjects, unix_at_zero: float) -> None:
        self.settings = settings
        self.subjects = subjects
        self.unix_at_zero = unix_at_zero
        self.open = OpenCases(subjects)
        self._closed: dict[Key, Case] = {}
        self._blame = Blame(subjects)
        self._absorbed_by: dict[tuple[str, str, str], Case] = {}
        self._changed: dict[int, Case] = {}
        self.lasting: set[str] = set()
        self._tended_ns: int | None = None
        self._new: set[int] = set()

    def know(self, subject: str) -> None:
        """Something is told of that subject: only what is told of can be missed below a switch."""
        self._blame.known.add(subject)

    def take(self, finding: Finding, now_ns: int) -> None:
        """One verdict. Troubles of a device's bus are those of the link that leads up from it."""
        if finding.kind in _OF_THE_BUS and (link := self.subjects.link(finding.subject)) != finding.subject:
            finding = replace(finding, subject=link, affected=(*finding.affected, finding.subject))
        if finding.bad:
            self._bad(finding, now_ns)
        else:
            self._good(finding, now_ns)

    def _bad(self, finding: Finding, now_ns: int) -> None:
        lost = self._lost_above(finding, now_ns)
        if lost is not None:
            if not finding.momentary:  # what happened once is never taken back
                self._absorb(lost, finding)
            if finding.subject not in lost.affected:
                lost.affected.add(finding.subject)
                self._note(lost)
            return
        if finding.kind == _NVLINK_ERRORS and finding.momentary and (link := self._bad_nvlink(finding, now_ns)):
            link.corroborate(finding, self.settings)
            link.affected.update({finding.subject} - {link.subject})
            self._note(link)
            return
        kind = kind_named(finding.kind)
        key = (kind.group or kind.name, finding.subject)
        case = self.open.get(key)
        if case is None:
            case = self._opened(key, finding, now_ns)
        if case.assert_bad(finding, now_ns, self.settings):
            self._note(case)
        if key[0] in (_LOST_GROUP, _PORT_GROUP):
            self._swallow(key[0], case, now_ns)
        if key[0] == _NVLINK_GROUP:
            self._take_errors(case, now_ns)

    def _bad_nvlink(self, errors: Finding, now_ns: int) -> Case | None:
        """The incident of the NVLinks that an error of a GPU, or of one of its links, tells of; the own first."""
        keys = self.open.belonging_to(errors.subject)
        keys += [(_NVLINK_GROUP, above) for above in self._above(errors.subject)]
        found = [self.open[key] for key in keys if key[0] == _NVLINK_GROUP and key in self.open]
        found = [case for case in found if case.is_bad or now_ns - case.last_bad_ns <= _TOGETHER_NS]
        return min(found, key=lambda case: (case.subject != errors.subject, -case.opened_ns), default=None)

    def _take_errors(self, link: Case, now_ns: int) -> None:
        """Errors that were told a moment before their links went down become part of that incident."""
        keys = {(_NVLINK_ERRORS, subject) for subject in (link.subject, *self._above(link.subject))}
        keys.update(key for key in self.open.belonging_to(link.subject) if key[0] == _NVLINK_ERRORS)
        for key in sorted(keys):
            case = self.open.get(key)
            if case is not None and not case.votes and now_ns - case.opened_ns <= _TOGETHER_NS:
                link.corroborate_by(case, self.settings)
                self._merge(key, case, link, now_ns)

    def _above(self, subject: str) -> tuple[str, ...]:
        owner = self.subjects.owner(subject)
        return (*self.subjects.parents(subject), *(() if owner is None else (owner,)))

    def _absorb(self, into: Case, finding: Finding) -> None:
        mark = (finding.kind, finding.subject, finding.source)
        into.absorbed[mark] = finding
        self._absorbed_by[mark] = into

    def _opened(self, key: Key, finding: Finding, now_ns: int) -> Case:
        case = self._closed.pop(key, None)
        window = int(self.settings.flap_window_seconds * SECOND_NS)
        if case is None or case.closed_ns is None or now_ns - case.closed_ns > window or case.merged_into:
            kind = kind_named(finding.kind)
            case = Case(finding.subject, now_ns, kind, finding.severity or kind.severity)
            self._new.add(id(case))
        self.open[key] = case
        return case

    def _good(self, finding: Finding, now_ns: int) -> None:
        kind = kind_named(finding.kind)
        case = self.open.get((kind.group or kind.name, finding.subject))
        if case is not None:
            looks_different = case.assert_good(finding, now_ns, self.settings)
            if case.kind.name in LASTING and not case.votes:
                case.event_ns, case.clear_ns = None, now_ns
                looks_different |= case.is_worth_telling_well(self.settings)
            if looks_different:
                self._note(case)
        mark = (finding.kind, finding.subject, finding.source)
        other = self._absorbed_by.pop(mark, None)
        if other is not None:
            other.absorbed.pop(mark, None)
            if not other.absorbed and not other.votes:
                other.clear_ns = other.clear_ns or now_ns
                if other.is_worth_telling_well(self.settings):
                    self._note(other)

    def alive(self, subject: str, now_ns: int) -> None:
        """The hardware of that subject gives values again."""
        for case in self.open.values():
            if case.subject != subject or case.kind.name not in LASTING or case.event_ns is None:
                continue
            if now_ns - case.event_ns > SECOND_NS:
                case.event_ns, case.clear_ns = None, now_ns
                if case.is_worth_telling_well(self.settings):
                    self._note(case)

    def _lost_above(self, finding: Finding, now_ns: int) -> Case | None:
        """The incident of something lost now that this subject belongs to or hangs on, if there is one."""
        if not self.open:
            return None
        subject = finding.subject
        group = kind_named(finding.kind).group
        if group != _LOST_GROUP and (own := self._lost_now((_LOST_GROUP, subject), now_ns)) is not None:
            return None if finding.momentary else own
        owner = self.subjects.owner(subject)
        above = [] if owner is None else [(_LOST_GROUP, owner)]
        if owner is not None and group == _PORT_GROUP:
            above.insert(0, (_PORT_GROUP, owner))
        above += [(_LOST_GROUP, parent) for parent in self.subjects.parents(subject)]
        return next((case for key in above if (case := self._lost_now(key, now_ns)) is not None), None)

    def _lost_now(self, key: Key, now_ns: int) -> Case | None:
        """That incident while it is asserted: one that is only held does not explain what goes wrong below it."""
        case = self.open.get(key)
        if case is None or (case.blamed and case.absorbed):
            return case
        until_ns = case.asserted_until_ns
        recent = case.event_ns is not None and now_ns - case.event_ns <= _TOGETHER_NS
        return case if until_ns is None or recent else None

    def _swallow(self, group: str, lost: Case, now_ns: int) -> None:
        """What was opened before for things that belong to what is lost now is part of it."""
        for key in self.open.belonging_to(lost.subject):
            case = self.open[key]
            if case is lost or not case.votes:
                continue
            if group == _LOST_GROUP or (key[0] == group and self.subjects.owner(case.subject) == lost.subject):
                self._merge(key, case, lost, now_ns)

    def _merge(self, key: Key, case: Case, into: Case, now_ns: int) -> None:
        for finding in case.votes.values():
            self._absorb(into, finding)
        if case.subject != into.subject:
            into.affected.add(case.subject)
        into.affected.update(case.affected - {into.subject})
        del self.open[key]
        self._note(into)
        if id(case) in self._new:  # nobody has heard of it
            self._new.discard(id(case))
            self._changed.pop(id(case), None)
            return
        case.merged_into = into.incident(self.unix_at_zero, self.settings).id
        case.closed_ns = now_ns
        self._note(case)

    def settle(self, now_ns: int, is_silent: Callable[[str, str], bool]) -> list[Incident]:
        """The batch is over: blame, close, and give every incident that looks different now."""
        if self._changed:  # else nobody new is to blame
            for verdict, members in list(self._blame.judge(self.open, now_ns)):
                self._blamed(verdict, members, now_ns)
        if self._tended_ns is None or not 0 <= now_ns - self._tended_ns < _TEND_EVERY_NS:
            self._tended_ns = now_ns
            self._close(now_ns)
            self._hold(is_silent)
        if self._changed:
            self.lasting = {case.subject for case in self.open.values() if case.kind.name in LASTING}
        changed = [case.incident(self.unix_at_zero, self.settings) for case in self._changed.values()]
        self._changed.clear()
        self._new.clear()
        return sorted(changed, key=lambda incident: (incident.kind, incident.subject, incident.id))

    def _blamed(self, verdict: Finding, members: list[Key], now_ns: int) -> None:
        kind = kind_named(verdict.kind)
        key = (kind.group or kind.name, verdict.subject)
        parts = [(member, self.open[member]) for member in members if member != key]
        case = self.open.get(key) or self._opened(key, verdict, now_ns)
        case.blamed = True
        case.assert_bad(verdict, now_ns, self.settings)
        case.event_ns = None
        case.votes.pop((verdict.kind, verdict.source), None)  # it stands as long as its parts do
        for member, part in parts:
            case.corroborate_by(part, self.settings)
            self._merge(member, part, case, now_ns)
        case.trusts.pop(verdict.source, None)
        self._note(case)

    def _close(self, now_ns: int) -> None:
        for key, case in list(self.open.items()):
            if self.open.get(key) is not case:  # what was released before it took it in
                continue
            if case.absorbed and self._explains_no_more(case, now_ns):
                self._release(key, case, now_ns)
            elif (over_ns := case.over_ns(now_ns, self.settings)) is not None and over_ns <= now_ns:
                case.event_ns = None
                self._end(key, case, over_ns)
        window = int(self.settings.flap_window_seconds * SECOND_NS)
        for key, case in list(self._closed.items()):
            if case.closed_ns is None or now_ns - case.closed_ns > window:
                del self._closed[key]

    def _explains_no_more(self, case: Case, now_ns: int) -> bool:
        """Whether what it absorbed must stand for itself. What hung on it has a moment to come back after it."""
        if case.blamed:
            return self._blame.is_over(case)
        until_ns = case.asserted_until_ns
        return until_ns is not None and now_ns - until_ns > _TOGETHER_NS

    def _release(self, key: Key, case: Case, now_ns: int) -> None:
        """It is over, or most of what hung on it is well again: the rest stands for itself."""
        rest = list(case.absorbed.values())
        for mark in case.absorbed:
            self._absorbed_by.pop(mark, None)
        case.absorbed.clear()
        if case.blamed:
            self._end(key, case, now_ns)
        else:
            case.clear_ns = case.asserted_until_ns
            self._note(case)
        for finding in rest:
            self._bad(finding, now_ns)

    def _end(self, key: Key, case: Case, now_ns: int) -> None:
        case.closed_ns = now_ns
        del self.open[key]
        self._closed[key] = case
        self._note(case)

    def _hold(self, is_silent: Callable[[str, str], bool]) -> None:
        """Incidents all of whose sources are silent are kept, with less confidence."""
        for case in self.open.values():
            if not case.votes or case.kind.group == "silence":
                continue
            held = all(is_silent(case.subject, source) for source in case.trusts)
            if held != case.held:
                case.held = held
                self._note(case)

    def _note(self, case: Case) -> None:
        self._changed[id(case)] = case

    def take_all(self, findings: Iterable[Finding], now_ns: int) -> None:
        """Verdicts in an order that does not depend on the order in which subjects were seen.

        What one source says of one thing is taken in the order in which it was said.
        """
        said: dict[tuple[str, str, str], list[Finding]] = {}
        for finding in findings:
            said.setdefault((finding.kind, finding.subject, finding.source), []).append(finding)
        if said:
            self._close(now_ns)  # what was over before they came is not prolonged by them
        for series in sorted(said.values(), key=lambda found: _order(found[-1])):
            for finding in series:
                self.take(finding, now_ns)


def _order(finding: Finding) -> tuple[bool, bool, int, str, str, str]:
    kind = kind_named(finding.kind)
    return (
        finding.bad, kind.group != _LOST_GROUP, finding.at_ns, finding.subject, finding.kind, finding.source,
    )  # fmt: skip
