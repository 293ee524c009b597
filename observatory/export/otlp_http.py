"""OTLP over HTTP: one request, and what the collector says to it.

Specification: https://opentelemetry.io/docs/specs/otlp/#otlphttp. Requests are encoded by OpenTelemetry's own encoders;
they are posted here, and not by its exporters, which try again on their own for as long as they have time, and tell of
the reason in a log only.
"""

from __future__ import annotations

import gzip

import httpx
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.metrics.export import MetricsData

from observatory.errors import ObservatoryError
from observatory.export.settings import OtlpSettings

_TRIED_AGAIN = frozenset({429, 502, 503, 504})
_MOST_ERROR_CHARACTERS = 200


class OtlpFailed(ObservatoryError):
    """The collector did not take it. `again`: it may at another time."""

    def __init__(self, message: str, *, again: bool) -> None:
        super().__init__(message)
        self.again = again


class OtlpClient:
    """A connection to a collector. Its methods return how many points or records the collector rejected.

    They raise OtlpFailed.
    """

    def __init__(self, settings: OtlpSettings) -> None:
        self._base = settings.endpoint.rstrip("/")
        self._compresses = settings.compression == "gzip"
        headers = {**settings.headers, "Content-Type": "application/x-protobuf"}
        if self._compresses:
            headers["Content-Encoding"] = "gzip"
        # Proxies and .netrc of the environment are none of this connection's business.
        self._client = httpx.Client(timeout=settings.timeout_seconds, headers=headers, trust_env=False)

    def send_metrics(self, data: MetricsData) -> int:
        """Points of all kinds."""
        answer = self._post("/v1/metrics", encode_metrics(data).SerializeToString())
        return int(ExportMetricsServiceResponse.FromString(answer).partial_success.rejected_data_points)

    def send_logs(self, records: list[ReadableLogRecord]) -> int:
        """Log records."""
        answer = self._post("/v1/logs", encode_logs(records).SerializeToString())
        return int(ExportLogsServiceResponse.FromString(answer).partial_success.rejected_log_records)

    def _post(self, path: str, body: bytes) -> bytes:
        try:
            answer = self._client.post(
                f"{self._base}{path}", content=gzip.compress(body, 4) if self._compresses else body
            )
        except (httpx.HTTPError, OSError) as error:
            raise OtlpFailed(str(error) or type(error).__name__, again=True) from None
        except httpx.InvalidURL as error:
            raise OtlpFailed(f"is no address: {error}", again=False) from None
        if not answer.is_success:
            said = answer.text[:_MOST_ERROR_CHARACTERS].strip() if answer.text.isprintable() else ""
            words = f"answers {answer.status_code} {answer.reason_phrase}{f': {said}' if said else ''}"
            raise OtlpFailed(words, again=answer.status_code in _TRIED_AGAIN)
        # A collector may answer in JSON, or with nothing: then it has taken all.
        return answer.content if answer.headers.get("Content-Type") == "application/x-protobuf" else b""

    def close(self) -> None:
        """End the connection."""
        self._client.close()
