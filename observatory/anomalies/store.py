"""The store of incidents: a table in `<state>/audit.db`, beside the decisions that were made because of them.

One row per incident, as it is now, whole as JSON; the columns beside it are for finding. Writes are durable when `save`
returns, several processes may read and write at once (SQLite in WAL mode). The table is made by whoever needs it first;
`PRAGMA user_version` belongs to the decisions. Of closed incidents the newest KEPT_CLOSED are kept.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from observatory.anomalies.errors import StoreError
from observatory.model.incident import Incident, IncidentState

KEPT_CLOSED = 10_000
BUSY_SECONDS = 10.0
LEFT_OPEN = "the platform ended while it was open"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS incidents (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    severity TEXT NOT NULL,
    state TEXT NOT NULL,
    opened_at REAL NOT NULL,
    closed_at REAL,
    record TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS incidents_by_time ON incidents (opened_at);
CREATE INDEX IF NOT EXISTS incidents_by_state ON incidents (state, closed_at);
"""
_PRUNE = """
DELETE FROM incidents WHERE state = 'closed' AND rowid IN (
    SELECT rowid FROM incidents WHERE state = 'closed' ORDER BY closed_at DESC, rowid DESC LIMIT -1 OFFSET ?
)
"""


class IncidentStore:
    """The incidents of one state directory. A context manager; the file is made by the first `save`."""

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

    def save(self, incidents: Iterable[Incident]) -> None:
        """Keep incidents as they are now; durable when this returns. Raises StoreError."""
        rows = [
            (i.id, i.kind, i.subject, i.severity.value, i.state.value, i.opened_at, i.closed_at, i.model_dump_json())
            for i in incidents
        ]
        if not rows:
            return
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._open() as connection:
                connection.executemany("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
                connection.execute(_PRUNE, (KEPT_CLOSED,))

    def list(self, state: IncidentState | None = None, limit: int = 100) -> list[Incident]:
        """The newest incidents, newest first. Raises StoreError."""
        where, arguments = ("", (limit,)) if state is None else ("WHERE state = ?", (state.value, limit))
        query = f"SELECT id, record FROM incidents {where} ORDER BY opened_at DESC, id DESC LIMIT ?"
        with self._errors():
            return [self._read(*row) for row in self._rows(query, arguments)]

    def find(self, incident_id: str) -> Incident | None:
        """The incident of that id, or None. Raises StoreError."""
        with self._errors():
            rows = self._rows("SELECT id, record FROM incidents WHERE id = ?", (incident_id,))
            return self._read(*rows[0]) if rows else None

    def _rows(self, query: str, arguments: tuple[object, ...]) -> Sequence[tuple[str, str]]:
        """Read without writing a byte, as the disk may be full. A file without the table has none."""
        if not self.path.exists():
            return ()
        with closing(self._opened_for_reading()) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'incidents'").fetchone() is None:
                return ()
            return connection.execute(query, arguments).fetchall()

    def _opened_for_reading(self) -> sqlite3.Connection:
        return sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)

    def close_left_open(self, at: float) -> int:
        """Close what a platform that ended left open, at Unix time `at`: how many. Raises StoreError."""
        left = self.list(IncidentState.OPEN, limit=-1)
        self.save(
            incident.model_copy(
                update={
                    "state": IncidentState.CLOSED,
                    "closed_at": max(at, incident.opened_at),
                    "words": f"{incident.words}; {LEFT_OPEN}",
                }
            )
            for incident in left
        )
        return len(left)

    def _read(self, incident_id: str, record: str) -> Incident:
        try:
            return Incident.model_validate_json(record)
        except ValidationError as error:
            words = f"incident {incident_id} was written by another version: {error.error_count()} fields differ"
            raise StoreError(words, file=str(self.path)) from None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS)
            try:
                self._use_wal(connection)
                connection.execute("PRAGMA synchronous = FULL")
                connection.executescript(_SCHEMA)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

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

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(f"the store of incidents cannot be used: {error}", file=str(self.path)) from None
        except OSError as error:
            words = f"the store of incidents cannot be made: {error.strerror}"
            raise StoreError(words, file=str(self.path), mend="choose another --state directory") from None
