"""Consumers that come and go together: all at one sequence."""

from __future__ import annotations

import pytest

from dataplane._ring import RingConsumer, RingEnded, RingError

from .rings import attach, put, ring


def taken(consumer: RingConsumer) -> list[int]:
    """Source indices up to where the share was cut off."""
    found = []

    def take_all() -> None:
        while (lease := consumer.take(0.0)) is not None:
            found.append(lease.descriptor.source_index)
            lease.release()

    with pytest.raises(RingEnded) as ended:
        take_all()
    assert ended.value.reason == "cut"
    return found


@pytest.mark.parametrize("policy", ["block", "drop_oldest"])
def test_shares_end_at_one_sequence_and_keep_nobody_waiting(policy: str) -> None:
    with ring([policy, policy, "block"], slots=3) as (producer, (one, other, staying)):
        put(producer, 10)
        put(producer, 11)
        assert producer.stop([0, 1]) == (2, 12)
        assert put(producer, 12) == 2
        assert put(producer, 13) is None, "what they have not read keeps its slots"
        assert taken(one) == taken(other) == [10, 11]
        for _ in range(3):
            lease = staying.take(0.0)
            assert lease is not None
            lease.release()
        assert put(producer, 13) == 3, "they keep nothing that follows"
        producer.dismiss(0)


def test_a_share_ends_once() -> None:
    with ring(["block", "block"]) as (producer, (one, other)):
        producer.stop([0])
        with pytest.raises(RingError, match="cut off at sequence 0 before"):
            producer.stop([1, 0])
        put(producer, 5)
        assert other.take(0.0) is not None, "of those that could not all be ended none was"
        assert taken(one) == []


def test_who_takes_over_from_a_dead_one_gets_the_rest_of_its_share() -> None:
    with ring() as (producer, (dead,)):
        for index in range(3):
            put(producer, index)
        first = dead.take(0.0)
        assert first is not None
        first.release()
        producer.stop([0])
        put(producer, 3)
        heir = RingConsumer("block")
        producer.replace(0, heir.page_fd)
        attach(heir, producer)
        assert taken(heir) == [1, 2]
        heir.close()


def test_consumers_are_let_in_at_one_sequence() -> None:
    with ring() as (producer, _):
        put(producer, 7)
        late = [RingConsumer("block"), RingConsumer("drop_oldest")]
        handles, sequence, source_index = producer.admit_together([c.page_fd for c in late], ["block", "drop_oldest"])
        assert (handles, sequence, source_index) == ([1, 2], 1, 8)
        put(producer, 8)
        for consumer in late:
            attach(consumer, producer)
            lease = consumer.take(0.0)
            assert lease is not None
            assert lease.descriptor.source_index == 8
            lease.release()
            consumer.close()


def test_all_are_let_in_or_none() -> None:
    with ring() as (producer, (there,)):
        fresh = RingConsumer("block")
        with pytest.raises(RingError, match="admitted already"):
            producer.admit_together([fresh.page_fd, there.page_fd], ["block", "block"])
        with pytest.raises(RingError, match="as many policies"):
            producer.admit_together([fresh.page_fd], [])
        assert producer.admit(fresh.page_fd, "block") > 0
        fresh.close()
