"""An OTLP endpoint that keeps what it is sent, and Rotel in front of it: a collector of somebody else."""

from __future__ import annotations

import gzip
import importlib.resources
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsPartialSuccess,
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric, NumberDataPoint

LATER = 30.0
"""Seconds that a busy machine may take."""


def until(what: Callable[[], bool], seconds: float = LATER) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return attributes(value.kvlist_value.values)
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)


def attributes(pairs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    pair: KeyValue
    for pair in pairs:
        assert pair.key not in found
        found[pair.key] = plain(pair.value)
    return found


class Sink:
    """What came: metrics as (resource, metric), records as (resource, record).

    With another `status` than 200 it takes nothing and answers so, with `words`; of what it takes it says that it
    rejected so many points, or records.
    """

    def __init__(self) -> None:
        self.metrics: list[tuple[dict[str, Any], Metric]] = []
        self.records: list[tuple[dict[str, Any], LogRecord]] = []
        self.headers: list[dict[str, str]] = []
        self.requests: list[int] = []  # bytes
        self.status, self.words, self.rejects = 200, b"", 0

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            for one in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                resource = attributes(one.resource.attributes)
                self.metrics += [(resource, metric) for scope in one.scope_metrics for metric in scope.metrics]
        elif path == "/v1/logs":
            for logs in ExportLogsServiceRequest.FromString(body).resource_logs:
                resource = attributes(logs.resource.attributes)
                self.records += [(resource, record) for scope in logs.scope_logs for record in scope.log_records]
        else:
            raise AssertionError(path)

    def answer(self, path: str) -> bytes:
        if self.status != 200:
            return self.words
        if path == "/v1/logs":
            said = ExportLogsPartialSuccess(rejected_log_records=self.rejects)
            return bytes(ExportLogsServiceResponse(partial_success=said).SerializeToString())
        points = ExportMetricsPartialSuccess(rejected_data_points=self.rejects)
        return bytes(ExportMetricsServiceResponse(partial_success=points).SerializeToString())

    def points(self, name: str) -> list[tuple[dict[str, Any], dict[str, Any], NumberDataPoint]]:
        """(Resource, attributes, point) of a metric, as they came."""
        return [
            (resource, attributes(point.attributes), point)
            for resource, metric in list(self.metrics)
            if metric.name == name
            for point in getattr(metric, metric.WhichOneof("data") or "gauge").data_points
        ]


@contextmanager
def sink() -> Iterator[tuple[Sink, str]]:
    """A listening sink and its endpoint."""
    kept = Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if kept.status == 200:
                kept.headers.append({name.lower(): value for name, value in self.headers.items()})
                kept.requests.append(len(body))
                kept.take(self.path, body)
            answer = kept.answer(self.path)
            self.send_response(kept.status)
            self.send_header("Content-Type", "application/x-protobuf" if kept.status == 200 else "text/plain")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield kept, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def rotel(behind: str, folder: Path) -> Iterator[str]:
    """Rotel, which hands on to `behind` what it receives; its OTLP/HTTP endpoint."""
    program = str(importlib.resources.files("rotel") / "rotel-agent")
    http, grpc = free_port(), free_port()
    command = [
        program, "start", "--exporter", "otlp", "--otlp-exporter-endpoint", behind, "--otlp-exporter-protocol", "http",
        "--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
        "--pid-file", str(folder / "rotel.pid"), "--batch-timeout", "50ms",
    ]  # fmt: skip
    with (folder / "rotel.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}, cwd=folder)
    try:

        def listens() -> bool:
            assert process.poll() is None, (folder / "rotel.log").read_text()
            try:
                socket.create_connection(("127.0.0.1", http)).close()
            except OSError:
                return False
            return True

        until(listens)
        yield f"http://127.0.0.1:{http}"
    finally:
        process.kill()
        process.wait()
