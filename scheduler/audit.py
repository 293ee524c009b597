"""The audit store: every decision of the scheduler, kept in `<state>/audit.db` (SQLite in WAL mode).

Records are kept whole, as the JSON that `observatory plan --json` prints (schema: docs/reference/decision-record.md);
the columns beside it are for listing. Several processes may write at once. `PRAGMA user_version` is the schema version;
a store of a newer version is refused, an older one would be migrated when it is opened. Of every pipeline the newest
KEPT_PER_PIPELINE decisions are kept: one that is tried again all the time would fill the disk.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from observatory.documents import did_you_mean
from observatory.model.plan import DecisionRecord
from scheduler.errors import AuditError, AuditFull, NoSuchDecision

SCHEMA_VERSION = 1
KEPT_PER_PIPELINE = 1000
BUSY_SECONDS = 10.0
LEAST_FREE_BYTES = 1 << 20

_SCHEMA = """
CREATE TABLE decisions (
    id TEXT PRIMARY KEY,
    created_unix_seconds REAL NOT NULL,
    pipeline TEXT NOT NULL,
    trigger TEXT NOT NULL,
    predicted_cost REAL NOT NULL,
    record TEXT NOT NULL
) STRICT;
CREATE INDEX decisions_by_time ON decisions (created_unix_seconds);
"""

_INDEX = "CREATE INDEX IF NOT EXISTS decisions_by_pipeline ON decisions (pipeline, created_unix_seconds)"
_PRUNE = """
DELETE FROM decisions WHERE id != ? AND rowid IN (
    SELECT rowid FROM decisions WHERE pipeline = ? ORDER BY created_unix_seconds DESC, rowid DESC LIMIT -1 OFFSET ?
)
"""


@dataclass(frozen=True, slots=True)
class DecisionLine:
    """One decision as a list shows it. `predicted_cost` in seconds of transfer per frame."""

    id: str
    created_unix_seconds: float
    pipeline: str
    trigger: str
    predicted_cost: float


class AuditStore:
    """The decisions of one state directory. A context manager; the file is made by the first `save`."""

    def __init__(self, state: Path) -> None:
        self.path = state / "audit.db"
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the store can be used again and opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def save(self, decision: DecisionRecord) -> None:
        """Keep a decision, durable when this returns, and drop the oldest of its pipeline beyond KEPT_PER_PIPELINE.

        The same id again replaces it.

        Raises:
            AuditError: the file cannot be written, or is none of ours.
        """
        pipeline = next(iter(decision.final_placement), "/").rpartition("/")[0]
        row = (
            decision.id,
            decision.created_unix_seconds,
            pipeline,
            decision.trigger,
            decision.predicted_cost,
            decision.model_dump_json(),
        )
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as connection:
                connection.execute("INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?, ?, ?)", row)
                connection.execute(_INDEX)  # stores made before it was needed lack it
                connection.execute(_PRUNE, (decision.id, pipeline, KEPT_PER_PIPELINE))

    def load(self, decision_id: str) -> DecisionRecord:
        """The decision of that id.

        Raises:
            NoSuchDecision: there is none; the closest ids are named.
            AuditError: the file cannot be read, or is none of ours.
        """
        with self._errors():
            row = None
            if self.path.exists():
                row = self._open().execute("SELECT record FROM decisions WHERE id = ?", (decision_id,)).fetchone()
            if row is None:
                known = [line.id for line in self.list(limit=1000)]
                raise NoSuchDecision(f"there is no decision {decision_id!r}", mend=did_you_mean(decision_id, known))
            try:
                return DecisionRecord.model_validate_json(row[0])
            except ValidationError as error:
                words = f"decision {decision_id} was written by another version: {error.error_count()} fields differ"
                raise AuditError(words, file=str(self.path)) from None

    def list(self, limit: int = 50) -> list[DecisionLine]:
        """The newest decisions, newest first. Raises AuditError."""
        with self._errors():
            if not self.path.exists():
                return []
            rows = self._open().execute(
                "SELECT id, created_unix_seconds, pipeline, trigger, predicted_cost FROM decisions"
                " ORDER BY created_unix_seconds DESC, id DESC LIMIT ?",
                (limit,),
            )
            return [DecisionLine(*row) for row in rows]

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        self._use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")  # a decision that was acted on must survive a power cut
        if self._version(connection) < SCHEMA_VERSION:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                if self._version(connection) < SCHEMA_VERSION:  # nobody else made it meanwhile
                    for statement in filter(str.strip, _SCHEMA.split(";")):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        if (found := self._version(connection)) > SCHEMA_VERSION:
            raise AuditError(
                f"was written by a newer version (schema {found}, this one knows {SCHEMA_VERSION})",
                file=str(self.path),
                mend="use the newer version, or another --state directory",
            )

    @staticmethod
    def _use_wal(connection: sqlite3.Connection) -> None:
        """Of all statements, SQLite refuses this one at once instead of waiting while another process writes."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)

    @staticmethod
    def _version(connection: sqlite3.Connection) -> int:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            free = shutil.disk_usage(self.path.parent).free
            full = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL
            # Where its shared memory finds no room, SQLite only speaks of an input/output error.
            if full or (error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR and free < LEAST_FREE_BYTES):
                words = f"the decision cannot be stored: the disk is full; {free / 1e6:.1f} MB are free"
                raise AuditFull(words, file=str(self.path), mend="free disk space, or choose another --state") from None
            raise AuditError(f"the audit store cannot be used: {error}", file=str(self.path)) from None
        except OSError as error:
            words = f"the audit store cannot be made: {error.strerror}"
            raise AuditError(words, file=str(self.path), mend="choose another --state directory") from None
