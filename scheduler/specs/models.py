"""The Media Pipeline Spec as it stands in a file, and the PodGroup that carries the same fields.

These models are the published JSON schema; `scheduler.specs.read` turns them into `observatory.model.pipeline.Pipeline`
after the checks that a schema cannot make (names, inputs, cycles).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
DEVICE_ID = r"^[^/\s]+/[a-z_]+[0-9]+$"

Name = Annotated[str, Field(pattern=NAME, max_length=253)]

MEDIA_API_VERSIONS = ("media.observatory/v1",)
POD_GROUP_API_VERSIONS = (
    "scheduling.volcano.sh/v1beta1",
    "scheduling.x-k8s.io/v1alpha1",
    "scheduling.sigs.k8s.io/v1alpha1",
    "scheduling.k8s.io/v1alpha1",
    "media.observatory/v1",
)
POD_GROUP_IGNORED = (
    "minMember",
    "minTaskMember",
    "minResources",
    "queue",
    "priorityClassName",
    "scheduleTimeoutSeconds",
    "networkTopology",
)


class _Strict(BaseModel):
    """Unknown keys are refused, nothing is coerced, numbers are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class OperatorSpec(_Strict):
    """One operator of the pipeline."""

    name: Name = Field(description="unique in the pipeline; edges and streams are called after it")
    op: str = Field(min_length=1, description="the operator plug-in, for example decode, scale, encode, mux")
    inputs: list[str] = Field(default_factory=list, description="operators whose output this one takes, in order")
    params: dict[str, Any] = Field(
        default_factory=dict, description="the operator's parameters; each operator has a model of its own for them"
    )
    device: str | None = Field(
        default=None,
        pattern=DEVICE_ID,
        description="pin to one device, for example n0/gpu3; null: the scheduler chooses",
    )


class QosSpec(_Strict):
    """Quality of service. What is left out is not asked for."""

    deadline_seconds: float | None = Field(
        default=None, gt=0, description="longest time one frame may take from the source to the last sink, seconds"
    )
    frames_per_second: float | None = Field(default=None, gt=0, description="rate that has to be kept up")
    priority: Literal["realtime", "standard", "best_effort"] = Field(
        default="standard", description="whose work gives way first: best_effort, then standard, then realtime"
    )
    on_full: Literal["block", "drop_oldest"] = Field(
        default="block", description="what an edge does when its consumer is slower than its producer"
    )


class ConstraintSpec(_Strict):
    """Operators that belong together in one domain of the machine."""

    type: Literal[
        "Node", "Socket", "NUMA_Node", "PCIe_Switch", "NVLink_Domain", "xGMI_Domain", "CXL_Memory_Node", "Device_Kind"
    ] = Field(description="the kind of domain; Device_Kind takes a value and puts each member on a device of that kind")
    members: list[str] = Field(min_length=1, description="names of operators")
    weight: float | None = Field(
        default=None, gt=0, le=100, description="left out: hard; else a wish, from just above 0 (weak) to 100 (strong)"
    )
    value: str | None = Field(
        default=None, min_length=1, description="one domain by name (n0, n0/numa1), or the device kind (gpu)"
    )


class HintSpec(_Strict):
    """A wish that operators share a place."""

    operators: list[str] = Field(min_length=2, description="names of operators")
    prefer: Literal["same-device", "same-numa", "same-socket", "same-node"] = Field(description="how close")


class PipelineSpec(_Strict):
    """What is asked for: the DAG, its quality of service and where it should run."""

    operators: list[OperatorSpec] = Field(min_length=1, description="in any order; there must be no cycle")
    qos: QosSpec = Field(default_factory=QosSpec)
    topologyConstraints: list[ConstraintSpec] = Field(default_factory=list)  # noqa: N815 (the file's own word)
    dataLocalityHints: list[HintSpec] = Field(default_factory=list)  # noqa: N815
    sharedMemoryProfile: Literal["default", "hugepage-2mb"] = Field(  # noqa: N815
        default="default", description="page size wanted for the pools; the fallback to 4 KiB pages is reported"
    )


class MetadataSpec(_Strict):
    """What the pipeline is called."""

    name: Name = Field(description="the pipeline's name, and that of its stream")
    labels: dict[str, str] = Field(default_factory=dict, description="kept for people; nothing reads them")
    annotations: dict[str, str] = Field(default_factory=dict, description="kept for people; nothing reads them")


class MediaPipelineFile(_Strict):
    """A Media Pipeline Spec."""

    apiVersion: Literal["media.observatory/v1"]  # noqa: N815
    kind: Literal["MediaPipeline"]
    metadata: MetadataSpec
    spec: PipelineSpec


class PodGroupMetadata(MetadataSpec):
    """Metadata of a Kubernetes object, as far as it is read or let pass."""

    namespace: str | None = Field(default=None, description="let pass; nothing reads it")


class PodGroupSpec(PipelineSpec):
    """The same fields as in a MediaPipeline, beside those of the gang scheduler, which are let pass and reported."""

    minMember: int | None = Field(default=None, ge=0, description="let pass")  # noqa: N815
    minTaskMember: dict[str, int] | None = Field(default=None, description="let pass")  # noqa: N815
    minResources: dict[str, Any] | None = Field(default=None, description="let pass")  # noqa: N815
    queue: str | None = Field(default=None, description="let pass")
    priorityClassName: str | None = Field(default=None, description="let pass")  # noqa: N815
    scheduleTimeoutSeconds: int | None = Field(default=None, ge=0, description="let pass")  # noqa: N815
    networkTopology: dict[str, Any] | None = Field(default=None, description="let pass")  # noqa: N815


class PodGroupFile(_Strict):
    """A Kubernetes PodGroup that describes a media pipeline."""

    apiVersion: Literal[  # noqa: N815
        "scheduling.volcano.sh/v1beta1",
        "scheduling.x-k8s.io/v1alpha1",
        "scheduling.sigs.k8s.io/v1alpha1",
        "scheduling.k8s.io/v1alpha1",
        "media.observatory/v1",
    ]
    kind: Literal["PodGroup"]
    metadata: PodGroupMetadata
    spec: PodGroupSpec
