"""Hardware that says of itself that it failed (`hw.status`), and GPUs that answer again after they were lost."""

from __future__ import annotations

from typing import ClassVar

from observatory.anomalies.detectors.base import Detector, state
from observatory.anomalies.finding import Finding
from observatory.model.observation import AddressKind, Observation

_FAILED = frozenset({"failed", "lost"})
_GONE = frozenset({"lost", "missing"})
_OF_GPUS = frozenset({"nvml", "amd-smi", "rocm-smi"})  # sources that tell of nothing else


class Status(Detector):
    """Judges `hw.status`: states `failed` and `lost`."""

    metrics: ClassVar[tuple[str, ...]] = ("hw.status",)

    def observe(self, subject: str, seen: Observation, value: float, out: list[Finding]) -> None:
        """One state of one thing, 1 where it is in it."""
        name = seen.attributes.get("hw.state", "")
        is_gpu = (
            seen.subject.kind is AddressKind.GPU or seen.source in _OF_GPUS or seen.attributes.get("hw.type") == "gpu"
        )
        kind = _kind(name, is_gpu)
        if kind is not None:
            plain = "the GPU is lost" if kind == "gpu_lost" else f"it reports that it is {name}"
            words = plain if value > 0 else ""
            self._say(out, state(kind, subject, seen, value > 0, words, trust=0.85))
        if value > 0 and name == "ok":
            for lost in ("gpu_lost", "device_lost", "component_failed"):
                self._say(out, state(lost, subject, seen, False))


def _kind(name: str, is_gpu: bool) -> str | None:
    if name in _GONE:
        return "gpu_lost" if is_gpu else "device_lost"
    if name in _FAILED:
        return "gpu_lost" if is_gpu else "component_failed"
    return None
