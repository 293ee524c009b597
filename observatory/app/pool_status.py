"""What workers said of their frame pools, as the status of a pipeline shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataplane.pool import PoolUse
from observatory.model.status import PoolStatus

OUTCOMES = ("hit", "fallback", "reclaim", "wait_for_slot", "wait_for_descriptor")


def pool_fields(pools: Mapping[tuple[str, str], PoolUse], *, ended: bool) -> dict[str, Any]:
    """The fields `pools`, `pool_resident_bytes` and `pool_hit_rate` of a PipelineStatus.

    `pools` is by operator and port. `ended`: the workers are gone, and their memory with them.
    """
    allocations = sum(use.allocations for use in pools.values())
    return {
        "pools": tuple(_status(operator, port, use, ended) for (operator, port), use in pools.items()),
        "pool_resident_bytes": sum(u.resident_bytes for u in pools.values()) if pools and not ended else None,
        "pool_hit_rate": sum(use.hits for use in pools.values()) / allocations if allocations else None,
    }


def _status(operator: str, port: str, use: PoolUse, ended: bool) -> PoolStatus:
    counts = (use.hits, use.fallbacks, use.reclaims, use.waits_for_slot, use.waits_for_descriptor)
    return PoolStatus(
        operator=operator,
        port=port,
        ring=use.layout,
        slots=sum(one.slot_count for one in use.classes),
        slots_in_use=sum(one.in_use for one in use.classes),
        slots_high_water=sum(one.high_water for one in use.classes),
        resident_bytes=None if ended else use.resident_bytes,
        internal_fragmentation_bytes=None if ended else use.internal_bytes,
        external_fragmentation_bytes=None if ended else use.external_bytes,
        hit_rate=use.hit_rate,
        allocations=dict(zip(OUTCOMES, counts, strict=True)),
    )
