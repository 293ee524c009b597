"""Who is connected to whom: the rings of each port, one after the other, their readers, and a monitor per ring.

The descriptors of a ring are kept until everybody has read it: a consumer that dies is succeeded by another one, which
has to attach the same rings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dataplane import _ring
from dataplane.assignment import Assignment, InputAssignment
from dataplane.control import Channel, ControlClosed, close_all
from dataplane.foreign import Host

Lost = Callable[[str, list[int]], None]
"""Told the key of an edge and the source indices that a dead consumer held, where nothing is delivered twice."""


@dataclass(eq=False, slots=True)
class Reader:
    """One consumer of an edge, by its page; its process may have been succeeded by another one."""

    operator: str
    edge: InputAssignment
    page: int  # descriptor
    channel: Channel  # to the process whose page it is
    leaving: bool = False  # cut off: what follows is for another reader of the edge
    job: str = ""  # of another job than the producer's: its name there
    ending: bool = False  # of another job, which ends: nothing follows
    withheld: list[Ring] = field(default_factory=list)  # not given to it yet: it waits to be let into an older one

    @property
    def name(self) -> str:
        """What its producer calls it; it itself knows only the key of its edge."""
        return f"{self.job}/{self.edge.key}" if self.job else self.edge.key


@dataclass(eq=False, slots=True)
class Ring:
    """One incarnation of a port."""

    fds: list[int]  # ring, slabs
    slot_bytes: list[int]
    monitor: _ring.RingMonitor
    producer: Channel  # to the process that made it
    readers: dict[Reader, int] = field(default_factory=dict)  # handle in the monitor
    replacing: dict[Reader, list[int]] = field(default_factory=dict)  # the producer is to do it: handles of dead pages

    def close(self) -> None:
        """Free it."""
        close_all(self.fds)
        self.fds = []
        self.monitor.close()


@dataclass(slots=True)
class Offer:
    """A port or page as a new worker made it, not connected yet."""

    fds: list[int]
    slot_bytes: list[int] = field(default_factory=list)


class Wiring:
    """The rings of one job, for the thread that supervises it."""

    def __init__(self, assignments: Sequence[Assignment], lost: Lost, hosts: Mapping[str, Host] | None = None) -> None:
        self._assignments = {a.operator: a for a in assignments}
        self._hosts = dict(hosts or {})  # by producer that another supervisor has
        self.hosts: tuple[Host, ...] = tuple(dict.fromkeys(self._hosts.values()))
        self._lost = lost
        self._rings: dict[tuple[str, str], list[Ring]] = {}  # operator, port -> the oldest first
        self._readers: dict[str, Reader] = {}  # edge key -> who reads it now
        self._leaving: dict[str, Reader] = {}
        self._ports: dict[tuple[str, str], Offer] = {}
        self._pages: dict[tuple[str, str], Offer] = {}

    # -- offers --------------------------------------------------------------------------------------------------

    def offer_port(self, operator: str, port: str, fds: list[int], slot_bytes: list[int]) -> None:
        """A worker made a port: descriptors of its ring and slabs, which are ours now."""
        self._drop(self._ports.pop((operator, port), None))
        self._ports[operator, port] = Offer(fds, slot_bytes)

    def offer_page(self, operator: str, edge: str, fd: int) -> None:
        """A worker made the consumer page of one of its input edges; the descriptor is ours now."""
        self._drop(self._pages.pop((operator, edge), None))
        self._pages[operator, edge] = Offer([fd])

    def set_aside(self, operator: str) -> dict[tuple[str, str], Offer]:
        """What another process of that operator offered, out of the way of what comes now; see `put_back`."""
        return {key: self._ports.pop(key) for key in list(self._ports) if key[0] == operator}

    def put_back(self, offers: dict[tuple[str, str], Offer]) -> None:
        """It counts again."""
        self._ports.update(offers)

    def withdraw(self, operator: str) -> None:
        """What a worker offered is of no use: it is gone before it was connected."""
        for offers in (self._ports, self._pages):
            for key in [key for key in offers if key[0] == operator]:
                self._drop(offers.pop(key))

    @staticmethod
    def _drop(offer: Offer | None) -> None:
        if offer is not None:
            close_all(offer.fds)

    # -- connecting ----------------------------------------------------------------------------------------------

    def connect(self, channels: Mapping[str, Channel]) -> None:
        """At the start: give each consumer its producer's ring and slabs, and each producer its consumers' pages."""
        for assignment in self._assignments.values():
            for edge in assignment.inputs:
                page = self._pages.pop((assignment.operator, edge.key)).fds[0]
                if edge.producer in self._hosts:
                    self._hosts[edge.producer].attach(assignment.operator, edge, page, channels[assignment.operator])
                    continue
                self._readers[edge.key] = Reader(assignment.operator, edge, page, channels[assignment.operator])
        for operator in self._assignments:
            self.open_ports(operator, channels)
        for host in self.hosts:
            host.attached()

    def open_ports(self, operator: str, channels: Mapping[str, Channel]) -> None:
        """The rings that a worker offered follow those its operator had: its consumers get them."""
        for (owner, port), offer in list(self._ports.items()):
            if owner != operator:
                continue
            del self._ports[owner, port]
            ring = Ring(offer.fds, offer.slot_bytes, _ring.RingMonitor(offer.fds[0]), channels[owner])
            self._rings.setdefault((owner, port), []).append(ring)
            for reader in self._readers.values():
                if (reader.edge.producer, reader.edge.port) != (owner, port):
                    continue
                policy = reader.edge.policy
                ring.readers[reader] = ring.monitor.watch(reader.page)
                tell(channels[owner], "output", [reader.page], port=port, edge=reader.name, policy=policy)
                self._let_in(ring, reader)
            self._end_shares_in(ring, port, [reader for reader in ring.readers if reader.ending])
            ring.monitor.seal_ring()

    def _let_in(self, ring: Ring, reader: Reader) -> None:
        """Give a ring to a reader whose page is listed there: rings of a port are read one after the other."""
        reader.withheld.append(ring)
        rings = self._rings[reader.edge.producer, reader.edge.port]
        reader.withheld.sort(key=rings.index)
        while reader.withheld and not self._waits_before(reader.withheld[0], reader):
            given = reader.withheld.pop(0)
            tell(reader.channel, "input", given.fds, edge=reader.edge.key, slot_bytes=given.slot_bytes)

    def _waits_before(self, ring: Ring, reader: Reader) -> bool:
        rings = self._rings[reader.edge.producer, reader.edge.port]
        return any(reader in older.replacing for older in rings[: rings.index(ring) + 1])

    # -- deaths ----------------------------------------------------------------------------------------------------

    def end_rings_of(self, producer: Channel, reason: str) -> None:
        """End the rings of a process whose pidfd has reported its death, where it had not done so.

        What it was asked to do and did not is done: heirs of its consumers are let in.
        """
        for ring in self._made_by(producer):
            if not ring.monitor.ended:
                ring.monitor.end(reason)
            for reader in list(ring.replacing):
                self._replace_in(ring, reader, ring.replacing.pop(reader))
                self._let_in(ring, reader)

    def _made_by(self, producer: Channel) -> list[Ring]:
        return [ring for rings in self._rings.values() for ring in rings if ring.producer is producer]

    def trails_of(self, operator: str) -> dict[str, list[_ring.Descriptor]]:
        """By port: what its last ring, which has ended, still has."""
        return {port: rings[-1].monitor.trail() for (owner, port), rings in self._rings.items() if owner == operator}

    def final_sequences(self, operator: str) -> dict[str, int]:
        """By port: where the rings of that operator have ended so far."""
        return {port: rings[-1].monitor.tail for (owner, port), rings in self._rings.items() if owner == operator}

    def succeed(self, operator: str, channels: Mapping[str, Channel], *, leaving: bool = False) -> None:
        """A worker succeeds a dead one: its pages take the place of that one's in all rings that it had not read."""
        readers = self._leaving if leaving else self._readers
        for edge in self._assignments[operator].inputs:
            offer = self._pages.pop((operator, edge.key))
            if edge.producer in self._hosts:
                self._hosts[edge.producer].succeed(edge, offer.fds[0], channels[operator])
            else:
                self._succeed_reader(readers[edge.key], offer.fds[0], channels[operator])

    def _succeed_reader(self, reader: Reader, page: int, channel: Channel) -> None:
        close_all([reader.page])
        reader.page, reader.channel = page, channel
        reader.withheld.clear()
        for ring in self._unread(reader):
            self._succeed_in(ring, reader)

    def _unread(self, reader: Reader) -> Iterator[Ring]:
        """Rings of its producer that it had not acknowledged to their end, the oldest first, and the last one always.

        What was acknowledged to the end may not have been finished: a file that lacks its name, say.
        """
        rings = [ring for ring in self._rings[reader.edge.producer, reader.edge.port] if reader in ring.readers]
        for ring in rings:
            acked = ring.monitor.consumer(ring.readers[reader])["acked"]
            if ring is rings[-1] or not ring.monitor.ended or acked < ring.monitor.tail:
                yield ring

    def _succeed_in(self, ring: Ring, reader: Reader) -> None:
        """Get the page listed, and only then give the ring away: who is not listed sees an ended ring as empty."""
        dead = ring.readers[reader]
        if ring.monitor.ended and reader not in ring.replacing:
            self._replace_in(ring, reader, [dead])
            self._let_in(ring, reader)
            return
        ring.replacing.setdefault(reader, []).append(dead)
        ring.readers[reader] = ring.monitor.watch(reader.page)
        name, port = reader.name, reader.edge.port
        tell(ring.producer, "replace", [reader.page], port=port, edge=name, leaving=reader.leaving)

    def _replace_in(self, ring: Ring, reader: Reader, dead: Sequence[int]) -> None:
        """Do it in the place of a producer that is gone: whichever of the dead pages it had listed is replaced.

        What it never listed, or has replaced itself, is refused.
        """
        watched = ring.readers[reader] not in dead
        held: set[int] = set()
        for page in reversed(dead):
            with contextlib.suppress(_ring.RingError):
                held.update(ring.monitor.replace(page, reader.page)[1])
        self._lost(reader.name, sorted(held))
        if not watched:
            ring.readers[reader] = ring.monitor.watch(reader.page)
        for page in dead:
            ring.monitor.unwatch(page)

    def replaced(self, operator: str, port: str, edge: str, *, leaving: bool, lost: list[int]) -> None:
        """A producer said that it did."""
        self._lost(edge, lost)
        for ring in self._rings[operator, port]:
            for reader, dead in list(ring.replacing.items()):
                if (reader.name, reader.leaving) == (edge, leaving):
                    ring.monitor.unwatch(dead.pop(0))
                    if not dead:  # else another answer follows: that page was not of the process that lives now
                        del ring.replacing[reader]
                        self._let_in(ring, reader)
                    return

    # -- hand-overs ------------------------------------------------------------------------------------------------

    def cut(self, operator: str, channels: Mapping[str, Channel]) -> None:
        """Ask the producers of an operator to hand over to the pages that its new instance offered."""
        for edge in self._assignments[operator].inputs:
            offer = self._pages[operator, edge.key]
            tell(channels[edge.producer], "cut", offer.fds, port=edge.port, edge=edge.key)

    def cut_by_the_dead(self, operator: str, edge: str) -> int | None:
        """Whether the last producer of an edge, which is dead by now, had cut it: where; None if it had not."""
        old = self._readers[edge]
        ring = self._rings[old.edge.producer, old.edge.port][-1]
        return ring.monitor.finish_cut(ring.readers[old], self._pages[operator, edge].fds[0])

    def was_cut(self, operator: str, edge: str, channel: Channel) -> None:
        """A producer did: from now on the new instance, which `channel` leads to, reads that edge."""
        old = self._readers[edge]
        old.leaving = True
        self._leaving[edge] = old
        page = self._pages.pop((operator, edge)).fds[0]
        reader = self._readers[edge] = Reader(operator, old.edge, page, channel)
        ring = self._rings[old.edge.producer, old.edge.port][-1]
        ring.readers[reader] = ring.monitor.watch(page)
        self._let_in(ring, reader)

    def leave(self, operator: str, channels: Mapping[str, Channel]) -> None:
        """The instance that was cut off has ended: nothing is kept for it any more."""
        for key, reader in list(self._leaving.items()):
            if reader.operator != operator:
                continue
            del self._leaving[key]
            close_all([reader.page])
            for ring in self._rings[reader.edge.producer, reader.edge.port]:
                if reader in ring.readers:
                    ring.monitor.unwatch(ring.readers.pop(reader))
            tell(channels[reader.edge.producer], "dismiss", port=reader.edge.port, edge=key)

    # -- readers of other jobs -------------------------------------------------------------------------------------

    def admit(self, readers: Sequence[Reader]) -> None:
        """Let readers of another job in; those of one port begin with the same sequence.

        Where a producer is dead at the moment, they begin with the ring of its heir; where it has come to its end, they
        see that. To who is not listed there, a ring that has ended is empty.
        """
        ports = dict.fromkeys((reader.edge.producer, reader.edge.port) for reader in readers)
        for owner, port in ports:
            own = [reader for reader in readers if (reader.edge.producer, reader.edge.port) == (owner, port)]
            self._readers.update({reader.name: reader for reader in own})
            ring = self._rings[owner, port][-1]
            ring.readers.update({reader: ring.monitor.watch(reader.page) for reader in own})
            names, policies = [reader.name for reader in own], [reader.edge.policy for reader in own]
            if not ring.monitor.ended:
                tell(ring.producer, "admit", [reader.page for reader in own], port=port, edges=names, policies=policies)
            for reader in own:
                self._let_in(ring, reader)

    def succeed_guest(self, name: str, page: int, channel: Channel) -> None:
        """Another process of that job reads on where the one before it died."""
        self._succeed_reader(self._readers[name], page, channel)

    def end_shares(self, names: Sequence[str]) -> None:
        """Nothing more is for these readers: those of one port end at the same sequence."""
        for (_, port), rings in self._rings.items():
            own = [reader for reader in rings[-1].readers if reader.name in names]
            self._end_shares_in(rings[-1], port, own)
        for name in names:
            self._readers[name].ending = True  # whatever becomes of their producers

    @staticmethod
    def _end_shares_in(ring: Ring, port: str, readers: Sequence[Reader]) -> None:
        if readers and not ring.monitor.ended:
            tell(ring.producer, "end", port=port, edges=[reader.name for reader in readers])

    def let_go(self, name: str) -> None:
        """Forget a reader of another job: nothing is kept for it any more."""
        reader = self._readers.pop(name)
        for ring in self._rings[reader.edge.producer, reader.edge.port]:
            if reader not in ring.readers:
                continue
            for handle in {ring.readers.pop(reader), *ring.replacing.pop(reader, ())}:
                ring.monitor.unwatch(handle)
            tell(ring.producer, "let_go", port=reader.edge.port, edge=name)
        close_all([reader.page])

    # -- looking ---------------------------------------------------------------------------------------------------

    def queues(self) -> dict[str, dict[str, int]]:
        """Per edge: frames `queued` (published, not taken) and `held` (taken, not acknowledged)."""
        found: dict[str, dict[str, int]] = {}
        for host in self.hosts:
            found |= host.queues()
        for key, reader in self._readers.items():
            queued = held = 0
            for ring in self._rings.get((reader.edge.producer, reader.edge.port), ()):
                if reader in ring.readers:
                    page = ring.monitor.consumer(ring.readers[reader])
                    first = ring.monitor.first_sequence
                    queued += max(0, ring.monitor.tail - max(page["taken"], first))
                    held = page["held"]
            found[key] = {"queued": queued, "held": held}
        return found

    def published(self) -> dict[tuple[str, str], int]:
        """Per (operator, port): payloads published so far."""
        own = {key: rings[-1].monitor.tail for key, rings in self._rings.items()}
        for host in self.hosts:
            own |= host.published()
        return own

    def prune(self) -> None:
        """Free rings that another one follows and that everybody has read."""
        for rings in self._rings.values():
            while len(rings) > 1 and not any(self._needs(rings[0], reader) for reader in rings[0].readers):
                rings.pop(0).close()

    @staticmethod
    def _needs(ring: Ring, reader: Reader) -> bool:
        waits = reader in ring.replacing or ring in reader.withheld
        return waits or ring.monitor.consumer(ring.readers[reader])["acked"] < ring.monitor.tail

    def close(self) -> None:
        """Unmap and close everything."""
        for host in self.hosts:
            host.leave()
        for rings in self._rings.values():
            for ring in rings:
                ring.close()
        self._rings.clear()
        for readers in (self._readers, self._leaving):
            close_all([reader.page for reader in readers.values()])
            readers.clear()
        for operator in self._assignments:
            self.withdraw(operator)


def tell(channel: Channel, kind: str, fds: Sequence[int] = (), **fields: object) -> None:
    """Say something to a worker; one that is gone does not hear it, and whoever succeeds it is told anew."""
    with contextlib.suppress(ControlClosed, BlockingIOError):  # the latter: it has not read hundreds of messages
        channel.send(kind, fds=fds, **fields)
