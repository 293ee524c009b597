"""What is planned to be shared, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.errors import CannotJoin
from dataplane.process import NurseryProcess
from observatory.app.gateways import Gateways
from observatory.app.prefixes import sources_by_key
from observatory.app.sharing import Newcomer, Sharing
from tests.app.test_prefixes import SMALL, typed

READ = typed(("decode", "decode", None, SMALL))


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Sharing]:
    with NurseryProcess() as nursery:
        yield Sharing(tmp_path, nursery, None)


def test_who_counted_on_an_input_that_ended_meanwhile_is_told(sharing: Sharing) -> None:
    """Its address is that of a gateway which is gone: what is opened in its place would wait there for ever."""
    newcomer = Newcomer(READ, Gateways(), willing=True, counted_on=frozenset(sources_by_key(READ)))
    with pytest.raises(CannotJoin, match="it has just ended"), sharing.plan([newcomer], 8, None, join=True):
        pass
    assert newcomer.shared == {}


def test_who_opened_its_input_itself_counts_on_nobody(sharing: Sharing) -> None:
    newcomer = Newcomer(READ, Gateways(), willing=True)
    with sharing.plan([newcomer], 8, None, join=True):
        assert newcomer.shared == {}
