"""Sends hardware series and incidents to an OpenTelemetry collector over OTLP, from a thread of its own.

Nobody waits for the collector: series are sent as they are when their time comes and not kept, incidents wait in a
queue with a bound. That the collector does not answer is said once, until it does again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from observatory.export.otlp_http import OtlpClient, OtlpFailed
from observatory.export.otlp_logs import incident_record
from observatory.export.otlp_metrics import MetricsEncoder, resource_of
from observatory.export.settings import OtlpSettings
from observatory.export.status import OtlpStatus
from observatory.metrics.hardware import Series
from observatory.model.incident import Incident

MOST_WAITING = 1000
"""Incidents that wait for a collector; beyond, the oldest is dropped and counted."""

POINTS_PER_REQUEST = 5000
"""About a megabyte: collectors refuse more than four unless told otherwise."""

RECORDS_PER_REQUEST = 200

_RETRY_SECONDS = 5.0
_Waiting = tuple[Incident, int]  # and when it was handed over, Unix nanoseconds
_log = logging.getLogger("observatory.export")


class OtlpExport:
    """Exports until it is stopped. Any thread may call anything; no call waits for the collector but `stop`.

    Args:
        settings: the collector.
        series: the series to send, as `LatestValues.series` gives them.
        node: the machine that this runs on, which incidents are told for.
        version: of this software.
    """

    def __init__(self, settings: OtlpSettings, series: Callable[[], Sequence[Series]], node: str, version: str) -> None:
        self._settings = settings
        self._series = series
        self._version = version
        self._resource = resource_of(node, version)
        self._encoder = MetricsEncoder(version, lambda: time.time_ns() - time.monotonic_ns())
        self._client = OtlpClient(settings)
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._stopping = False
        self._status = OtlpStatus()
        self._series_due = self._incidents_due = 0.0  # time.monotonic
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def incident(self, incident: Incident) -> None:
        """Tell the collector of an incident as it is now: soon, and for as long as it takes."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self._count(incidents_dropped=1)
            self._waiting.append((incident, time.time_ns()))
            self._changed.notify()

    def status(self) -> OtlpStatus:
        """How it stands."""
        with self._changed:
            return replace(self._status, incidents_waiting=len(self._waiting))

    def stop(self, timeout_seconds: float = 5.0) -> bool:
        """Send what waits, if the collector answers, and end. False: it did not come to that within the time."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.ident is None:
            return True
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._series_due = time.monotonic() + self._settings.interval_seconds
        try:
            while self._wait():
                self._send_what_is_due()
            self._series_due = 0.0
            while self._status.error is None:  # else these words would only wait for a collector that is not there
                self._send_what_is_due()
                if not self._waiting:
                    break
        finally:
            self._client.close()

    def _wait(self) -> bool:
        """Until something is to be sent; False: it is over."""
        with self._changed:
            while not self._stopping:
                due = min(self._series_due, self._incidents_due) if self._waiting else self._series_due
                pause = due - time.monotonic()
                if pause <= 0:
                    break
                self._changed.wait(pause)
            return not self._stopping

    def _send_what_is_due(self) -> None:
        now = time.monotonic()
        with self._changed:
            batch = list(islice(self._waiting, RECORDS_PER_REQUEST))
        if batch and now >= self._incidents_due:
            sent = self._try("incidents", lambda: self._export_incidents(batch))
            self._incidents_due = 0.0 if sent else time.monotonic() + _RETRY_SECONDS
        if now >= self._series_due:
            self._try("series", self._export_series)
            self._series_due = time.monotonic() + self._settings.interval_seconds

    def _export_incidents(self, batch: Sequence[_Waiting]) -> None:
        try:
            records = [incident_record(one, self._resource, self._version, at) for one, at in batch]
            rejected = self._client.send_logs(records)
        except Exception as error:
            if not isinstance(error, OtlpFailed) or not error.again:  # the specification forbids to send them again
                self._take_off(batch, sent=0)
            raise
        self._take_off(batch, sent=len(batch) - rejected)

    def _take_off(self, batch: Sequence[_Waiting], sent: int) -> None:
        with self._changed:
            done = set(map(id, batch))
            while self._waiting and id(self._waiting[0]) in done:  # some may have been dropped meanwhile
                self._waiting.popleft()
            self._count(incidents_sent=sent, incidents_dropped=len(batch) - sent)

    def _export_series(self) -> None:
        series = self._series()
        for begin in range(0, len(series), POINTS_PER_REQUEST):
            piece = series[begin : begin + POINTS_PER_REQUEST]
            rejected = self._client.send_metrics(self._encoder.encode(piece))
            with self._changed:
                self._count(points_sent=len(piece) - rejected, points_rejected=rejected)
        self._encoder.forget_all_but(len(series))

    def _try(self, what: str, export: Callable[[], None]) -> bool:
        error: str | None = None
        try:
            export()
        except OtlpFailed as failure:
            error = str(failure)
        except Exception as failure:  # whatever goes wrong here is no reason to end the platform, or to say no more
            error = f"{type(failure).__name__}: {failure}"
        with self._changed:
            before = self._status.error
            self._count(exports=1, failures=int(error is not None))
            self._status = replace(self._status, error=error)
        if error is not None and before is None:
            _log.warning("OTLP: %s cannot be sent to %s, and is tried again: %s", what, self._settings.endpoint, error)
        elif error is None and before is not None:
            _log.warning("OTLP: %s takes what is sent again", self._settings.endpoint)
        return error is None

    def _count(self, **more: int) -> None:
        """Under the lock."""
        self._status = replace(self._status, **{name: getattr(self._status, name) + n for name, n in more.items()})
