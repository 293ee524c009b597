"""What a configuration may say: the sections and their fields. The reference is made from their descriptions.

`reload` says when a change takes effect in a running platform that gets SIGHUP.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator

from dataplane.pool import Policy
from observatory.app.cli.common import default_state
from observatory.app.units import parse_size
from observatory.documents import did_you_mean
from observatory.export.settings import OtlpSettings
from observatory.frames.policy import RetentionPolicy
from observatory.model.errors import ModelError
from scheduler.specs.models import NAME

Reload = Literal["at once", "new pipelines", "restart"]


def _reload(when: Reload) -> dict[str, Any]:
    return {"reload": when}


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


def _size(value: Any) -> Any:
    if isinstance(value, bool | float):
        raise ValueError('must be a size such as "8GB", or a whole number of bytes')
    try:
        return parse_size(value) if isinstance(value, str) else value
    except ModelError as error:
        raise ValueError(f"{error.message}; {error.mend}") from None


def _words(value: Any) -> Any:
    """Lists come from the environment with commas."""
    return tuple(word.strip() for word in value.split(",") if word.strip()) if isinstance(value, str) else value


def _inputs(value: Any) -> Any:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, dict) and all(isinstance(location, str) for location in value.values()):
        return tuple(f"{operator}={location}" for operator, location in value.items())
    if isinstance(value, tuple):
        return value
    raise ValueError("must be a file or URL in quotes, or a table: {operator = file or URL, ...}")


def _headers(value: Any) -> Any:
    """As `name=value`; what is wrong with them is said without showing them."""
    if isinstance(value, str):
        pairs = [word.strip().partition("=") for word in value.split(",") if word.strip()]
        if not all(mark for _, mark, _ in pairs):
            raise ValueError("must be name=value, several of them with commas")
        value = {name: text for name, _, text in pairs}
    if isinstance(value, tuple):
        return value
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError('must be a table of words in quotes: {Authorization = "Bearer ..."}')
    for name, text in value.items():
        if not _HEADER_NAME.fullmatch(name) or not text.isascii() or not text.isprintable():
            raise ValueError("must have names and values that HTTP allows")
    return tuple(SecretStr(f"{name}={text.strip()}") for name, text in value.items())


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2

Whole = Annotated[int, BeforeValidator(_number)]
Seconds = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Size = Annotated[int, BeforeValidator(_size), Field(gt=0)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Headers = Annotated[tuple[SecretStr, ...], BeforeValidator(_headers)]
Inputs = Annotated[tuple[str, ...], BeforeValidator(_inputs)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlatformSection(_Section):
    """Where the platform runs, and what every pipeline may take."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address at which pages, API and metrics are served. The default lets only this machine in.",
        json_schema_extra=_reload("restart"),
    )
    port: Whole = Field(
        default=8050, ge=0, le=65535, description="Its port; 0 takes a free one.", json_schema_extra=_reload("restart")
    )
    state: Path = Field(
        default_factory=default_state,
        description="Directory of frame records, decisions and sockets.",
        json_schema_extra=_reload("restart"),
    )
    topology: str | None = Field(
        default=None,
        min_length=1,
        description="Where operators are placed: a topology file, `real` for this machine, or the name of a shipped "
        "one. Unset: a shipped node with 8 GPUs.",
        json_schema_extra=_reload("restart"),
    )
    memory_limit_bytes: Size | None = Field(
        default=None,
        alias="memory_limit",
        description='What the frame pools of one pipeline may take, e.g. "8GB". Unset: what is free.',
        json_schema_extra=_reload("new pipelines"),
    )
    queue_frames: Whole = Field(
        default=8,
        ge=1,
        le=256,
        description="Frames between two operators, beyond what they hold.",
        json_schema_extra=_reload("new pipelines"),
    )
    compact_pools_seconds: Seconds = Field(
        default=60.0,
        ge=0,
        description="Frame pools that so long had more memory than was in use give the rest back: their operator goes "
        "over to another process meanwhile, no frame is lost. 0: never.",
        json_schema_extra=_reload("new pipelines"),
    )
    share_prefixes: bool = Field(
        default=True,
        description="What pipelines have in common from their inputs on runs once: of those that are started together, "
        "and of live inputs. See [sharing](../dataplane.md#several-jobs).",
        json_schema_extra=_reload("new pipelines"),
    )
    allowed_hosts: Words = Field(
        default=(),
        description="Host names under which the pages may be asked for, besides those of the loopback address; in "
        "the environment with commas.",
        json_schema_extra=_reload("restart"),
    )

    def pool_policy(self) -> Policy | None:
        """When pools give idle memory back; None: never."""
        return Policy(window_seconds=self.compact_pools_seconds) if self.compact_pools_seconds else None


class FramesSection(_Section):
    """What the frame store keeps: see [frame records](frame-records.md#retention)."""

    keep_all_seconds: Seconds = Field(
        default=600.0, ge=0, description="Every frame is kept so long.", json_schema_extra=_reload("at once")
    )
    keep_one_in: Whole = Field(
        default=100,
        ge=1,
        le=2**32,
        description="Then one frame in so many, besides the slow, lost and incident ones.",
        json_schema_extra=_reload("at once"),
    )
    slow_seconds: Seconds | None = Field(
        default=None,
        gt=0,
        description="Frames that take longer from first launch to last release are slow. Unset: those above the 99th "
        "percentile of their stream.",
        json_schema_extra=_reload("at once"),
    )
    disk_budget_bytes: Size = Field(
        default=10 * 10**9,
        alias="disk_budget",
        description='What the frame store may take on the disk, e.g. "10GB"; the oldest frames go when it is used up.',
        json_schema_extra=_reload("at once"),
    )
    check_seconds: Seconds = Field(
        default=10.0, gt=0, le=86_400, description="Pause between two sweeps.", json_schema_extra=_reload("at once")
    )

    def retention(self) -> RetentionPolicy:
        """The same for the frame store."""
        return RetentionPolicy(
            keep_all_seconds=self.keep_all_seconds,
            keep_one_in=self.keep_one_in,
            slow_seconds=self.slow_seconds,
            disk_budget_bytes=self.disk_budget_bytes,
        )


class TelemetrySection(_Section):
    """Who looks at the hardware, and how often: see [receivers](../receivers.md)."""

    enabled: bool = Field(
        default=True,
        description="Look at the hardware: live topology, incidents, hardware metrics.",
        json_schema_extra=_reload("restart"),
    )
    machine: Literal["auto", "real", "emulated"] = Field(
        default="auto",
        description="What is looked at: the `real` machine, or the [emulated one](../emulated-machine.md) of the "
        "topology. `auto`: the real one where the topology is of it (`real`, or a node with this host's name).",
        json_schema_extra=_reload("restart"),
    )
    receivers: Words = Field(
        default=("infiniband", "interfaces", "kmsg", "numa", "nvml", "nvml-events", "pressure", "sysfs-pcie"),
        description="Receivers by name; `observatory doctor` lists all. In the environment with commas.",
        json_schema_extra=_reload("restart"),
    )
    endpoints: Words = Field(
        default=(),
        description="Exporters that are there already (dcgm-exporter, node_exporter), by URL; in the environment with "
        "commas.",
        json_schema_extra=_reload("restart"),
    )

    @field_validator("receivers")
    @classmethod
    def _are_there(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        known = [point.name for point in entry_points(group="media_observatory.receivers")]
        for name in names:
            if name not in known:
                raise ValueError(f"there is no receiver {name!r}; {did_you_mean(name, known)}")
        return names

    @field_validator("endpoints")
    @classmethod
    def _are_addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            if not re.match(r"https?://[^\s/]+", url):
                raise ValueError(
                    f"{url!r} is no address of an exporter; write for example http://127.0.0.1:9400/metrics"
                )
        return urls

    period_seconds: Seconds | None = Field(
        default=None,
        ge=0.01,
        le=3600,
        description="Time between two looks. Unset: each receiver's own, mostly 0.25.",
        json_schema_extra=_reload("restart"),
    )


class OtlpSection(_Section):
    """Hardware telemetry and incidents for an OpenTelemetry collector: see [OpenTelemetry](../opentelemetry.md)."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$",
        description='Address of its OTLP/HTTP receiver, e.g. "http://127.0.0.1:4318". Unset: nothing is sent.',
        json_schema_extra=_reload("restart"),
    )
    headers: Headers = Field(
        default=(),
        description='Sent with every request, as a table: {Authorization = "Bearer ..."}; in the environment '
        "`name=value` with commas. Values are never shown.",
        json_schema_extra=_reload("restart"),
    )
    interval_seconds: Seconds = Field(
        default=10.0,
        ge=0.1,
        le=86_400,
        description="Pause between two sendings of the hardware's values; incidents are sent at once.",
        json_schema_extra=_reload("restart"),
    )
    timeout_seconds: Seconds = Field(
        default=10.0, gt=0, le=3600, description="How long one request may take.", json_schema_extra=_reload("restart")
    )
    compression: Literal["gzip", "none"] = Field(
        default="gzip", description="Of the requests: gzip or none.", json_schema_extra=_reload("restart")
    )

    def settings(self) -> OtlpSettings | None:
        """The same for the export; None: nothing is sent."""
        if self.endpoint is None:
            return None
        pairs = (one.get_secret_value().partition("=") for one in self.headers)
        return OtlpSettings(
            endpoint=self.endpoint,
            headers={name: value for name, _, value in pairs},
            interval_seconds=self.interval_seconds,
            timeout_seconds=self.timeout_seconds,
            compression=self.compression,
        )


class PipelineSection(_Section):
    """One pipeline that runs from the start on; repeat it for more. Relative paths start at this file's folder."""

    spec: str = Field(min_length=1, description="The pipeline's file.")
    name: str | None = Field(
        default=None,
        pattern=NAME,
        max_length=253,
        description="In place of the name in that file; needed where one file makes several pipelines.",
    )
    inputs: Inputs = Field(
        default=(),
        description="File or URL to read; or, where the pipeline has several sources, a table of them by operator.",
    )
    frames: Whole | None = Field(default=None, ge=1, description="Stop after so many frames of each source.")
    realtime: bool | None = Field(
        default=None, description="Read files at their own pace, not as fast as they can be read."
    )
