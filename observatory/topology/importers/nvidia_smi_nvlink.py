"""`nvidia-smi nvlink -s`: the state and speed of every NVLink of every GPU.

    GPU 0: NVIDIA H200 (UUID: GPU-...)
             Link 0: 26.562 GB/s          of one link, one direction; `<inactive>` when it is down

The speed is the line rate of some generations (26.562 GB/s of NVLink 4): the bandwidth is that of data, 25 GB/s.

It does not tell where the links lead. GPUs without NVLink, with MIG, or with all links inactive say so instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from observatory.model.data_sheets import gpu_sheet, nvlink_data_bytes_per_second
from observatory.model.device import DeviceKind
from observatory.model.link import LinkKind, LinkState
from observatory.model.topology import Topology, VertexKind
from observatory.topology.importers.building import TopologyBuilder, stated
from observatory.topology.importers.source import Format, Source

_GPU = re.compile(r"\s*GPU (\d{1,4}): (.{1,120}?) \(UUID: ([\w-]{1,80})\)\s*\Z")
_LINK = re.compile(r"\s*Link (\d{1,3}): (?:(\d{1,5}(?:\.\d{1,6})?) GB/s|<?(inactive)>?)\s*\Z", re.IGNORECASE)
_OTHER_LINK = re.compile(r"\s*Link (\d{1,3}):")
_LEFT_OUT = re.compile(r"\s*\[?\.\.\.\]?\s*\Z")


@dataclass
class _Gpu:
    """One GPU as told."""

    number: int
    name: str
    line: int
    speeds: dict[int, str | None] = field(default_factory=dict)  # None: inactive
    left_out: bool = False
    says: str | None = None


def _read(source: Source) -> Topology:
    gpus: list[_Gpu] = []
    for number, line in enumerate(source.lines, 1):
        if match := _GPU.match(line):
            gpus.append(_Gpu(int(match[1]), match[2], number))
        elif not gpus or not line.strip():
            continue
        elif match := _LINK.match(line):
            if int(match[1]) in gpus[-1].speeds:
                source.fail(f"tells link {match[1]} of GPU {gpus[-1].number} twice", number)
            gpus[-1].speeds[int(match[1])] = match[2]
        elif _LEFT_OUT.match(line):
            gpus[-1].left_out = True
        elif _OTHER_LINK.match(line):
            source.fail(
                "tells something else of NVLinks than their speeds", number, "nvidia-smi nvlink -s prints the speeds"
            )
        else:
            gpus[-1].says = line.strip()
    if not gpus:
        source.fail("names no GPU", 1, "give the whole output of nvidia-smi nvlink -s")
    build = TopologyBuilder(source, name="nvidia-smi nvlink")
    node = build.node()
    numbers = [g.number for g in gpus]
    for gpu in gpus:
        if numbers.count(gpu.number) > 1:
            source.fail(f"tells of GPU {gpu.number} twice", gpu.line)
        _add(build, node, gpu)
    if any(g.speeds for g in gpus):
        build.warn("where the NVLinks lead is not told: give nvidia-smi topo -m, too")
    return build.build()


def _add(build: TopologyBuilder, node: str, gpu: _Gpu) -> None:
    sheet = gpu_sheet(name=gpu.name)
    device = build.device(
        node,
        DeviceKind.GPU,
        number=gpu.number,
        name=gpu.name,
        engines=sheet.device_engines() if sheet else (),
    )
    if gpu.says is not None:
        build.warn("GPUs that do not tell their NVLinks", f"{device}: {gpu.says}")
    if not gpu.speeds:
        return
    speeds = [nvlink_data_bytes_per_second(float(s) * 1e9) for s in gpu.speeds.values() if s is not None]
    end = build.vertex(node, "nvlink_end", VertexKind.FAR_END, name="far ends of NVLinks, not told")
    whole = not gpu.left_out
    if gpu.left_out:
        build.warn("lines were left out: the number of links is not known", device)
    down = len(speeds) < len(gpu.speeds)
    build.link(
        device,
        end,
        LinkKind.NVLINK,
        count=len(speeds) or None if whole else None,
        width=len(speeds) if whole else None,
        best_width=len(gpu.speeds) if whole else None,
        speed=f"{next(s for s in gpu.speeds.values() if s is not None)} GB/s" if len(set(speeds)) == 1 else None,
        state=(LinkState.DOWN if not speeds else LinkState.DEGRADED) if down else LinkState.UP,
        **stated(sum(speeds) if whole and speeds else None),
    )
    if down:
        names = ", ".join(str(n) for n, s in gpu.speeds.items() if s is None)
        build.warn("inactive NVLinks", f"{device}: {names}")


def _recognise(source: Source) -> bool:
    return any(_GPU.match(line) for line in source.head.split("\n")[:200])


FORMAT = Format(name="nvidia-smi-nvlink", title="nvidia-smi nvlink -s", recognise=_recognise, read=_read)
