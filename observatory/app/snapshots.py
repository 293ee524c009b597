"""Snapshots of what runs on a state directory: how the store is doing, and the snapshot of a single `run`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from observatory.app.job import Job
from observatory.frames.collected import CollectorSnapshot
from observatory.frames.retention_thread import RetentionStatus
from observatory.model.status import PlatformStatus, Snapshot, StoreStatus


def store_status(state: Path, seen: Sequence[CollectorSnapshot], kept: RetentionStatus | None = None) -> StoreStatus:
    """The frame store, from what the collectors that write to it, and its retention, say."""
    try:
        disk_bytes: int | None = (state / "frames" / "data.mdb").stat().st_blocks * 512
    except OSError:
        disk_bytes = None
    return StoreStatus(
        records=sum(s.records for s in seen) if seen else None,
        records_per_second=sum(s.records_per_second for s in seen) if seen else None,
        records_pending=sum(s.records_pending for s in seen),
        records_dropped=sum(s.records_dropped for s in seen),
        events_lost=sum(s.events_lost for s in seen),
        disk_bytes=disk_bytes,
        budget_bytes=None if kept is None else kept.policy.disk_budget_bytes,
        keep_all_seconds=None if kept is None else kept.policy.keep_all_seconds,
        error=next((s.error for s in seen if s.error is not None), None),
    )


def snapshot_of_job(job: Job) -> Snapshot:
    """What the process of one `observatory run` says of itself."""
    seen = [] if job.collected is None else [job.collected]
    return Snapshot(
        unix_seconds=time.time(),
        platform=PlatformStatus(
            version=version("media-observatory"),
            host=socket.gethostname(),
            pid=os.getpid(),
            state=str(job.state),
            url=None,
            topology=job.placed.topology_name,
            started_unix_seconds=job.status.submitted_unix_seconds,
        ),
        pipelines=(job.status,),
        store=store_status(job.state, seen),
    )
