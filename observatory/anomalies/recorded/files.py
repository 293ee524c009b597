"""Recorded files of any known form, recognised by their content, and the incidents in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from observatory.anomalies.errors import RecordingError
from observatory.anomalies.recorded import health_dumps, infiniband, kernel_logs, nvidia_smi, rocm_smi
from observatory.anomalies.recorded.recording import Recording
from observatory.anomalies.settings import WatchSettings
from observatory.anomalies.subjects import PlainSubjects
from observatory.anomalies.watch import IncidentWatch
from observatory.model.incident import Incident

MOST_BYTES = 64 << 20
FORMS = (
    "logs of the kernel (dmesg, /dev/kmsg, pstore, journald, syslog), NVIDIA's fabric manager, nvidia-smi (--query-gpu,"
    " -q -x, nvlink -s, its table), rocm-smi --json, ibstatus, perfquery, ibswinfo, ethtool, health dumps and manifests"
)


@dataclass(frozen=True, slots=True)
class Analysis:
    """What was found in recorded files: their forms in order, how much was seen, and every incident, as it ended."""

    forms: tuple[str, ...]
    seen_count: int
    incidents: tuple[Incident, ...]


def read_recordings(paths: Sequence[str | Path], node: str = "recorded") -> list[Recording]:
    """What each file tells.

    Raises:
        RecordingError: a file cannot be read, is too large, or of no known form.
    """
    return [_read(Path(path), node) for path in paths]


def analyse(recordings: Iterable[Recording], settings: WatchSettings | None = None) -> Analysis:
    """The incidents in recordings of one machine. One look is all there is, so it needs no second that agrees."""
    whole = Recording("all")
    forms = []
    for recording in recordings:
        forms.append(recording.form)
        whole.join(recording)
    watch = IncidentWatch(PlainSubjects(whole.owners), settings or WatchSettings(confirmations=1))
    found: dict[str, Incident] = {}
    now_ns = 0
    for look in whole.looks:
        now_ns = max(now_ns, look.at_ns)
        for incident in watch.see(look.seen, now_ns):
            found[incident.id] = incident
    found.update((incident.id, incident) for incident in watch.open)
    ordered = sorted(found.values(), key=lambda i: (i.noticed_ns, i.kind, i.subject))
    return Analysis(tuple(forms), watch.seen_count, tuple(ordered))


def _read(path: Path, node: str) -> Recording:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RecordingError(f"cannot be read: {error.strerror}", file=str(path)) from None
    if len(data) > MOST_BYTES:
        raise RecordingError(f"has more than {MOST_BYTES >> 20} MB", file=str(path), mend="give the part that matters")
    text = data.decode("utf-8", "replace")
    try:
        recording = _recognise(text, node, path.name)
    except RecordingError as error:
        raise RecordingError(error.message, file=str(path), mend=error.mend) from None
    if recording is None:
        raise RecordingError("is of no known form", file=str(path), mend=f"known are {FORMS}")
    return recording


def _recognise(text: str, node: str, name: str) -> Recording | None:
    if text.lstrip()[:1] in ("{", "["):
        return _from_json(text, node)
    if nvidia_smi.is_nvidia_smi(text):
        return nvidia_smi.read_nvidia_smi(text, node)
    if infiniband.is_infiniband(text):
        return infiniband.read_infiniband(text, node, name)
    if kernel_logs.is_log(text):
        return kernel_logs.read_log(text, node)
    return None


def _from_json(text: str, node: str) -> Recording | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return kernel_logs.read_log(text, node) if kernel_logs.is_log(text) else None
    if health_dumps.is_manifest(document):
        return health_dumps.read_manifest(document, node)
    if health_dumps.is_dump(document):
        return health_dumps.read_dump(document, node)
    if rocm_smi.is_rocm_smi(document):
        return rocm_smi.read_rocm_smi(document, node)
    return None
