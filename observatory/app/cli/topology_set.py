"""`observatory topology set`: change a link or a device of the emulated machine under a running platform."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from observatory.app.cli.common import common_options, print_json
from observatory.app.units import rate_text, seconds_text
from observatory.model.errors import ModelError

SET_SECONDS = 10.0


@click.command(
    "set",
    epilog="""\b
Examples:
  observatory topology set gpu0-nvswitch0 width=8              8 of 18 NVLinks are left
  observatory topology set n0/gpu0--n0/pcie0:pcie width=8 speed=8GT/s
  observatory topology set gpu1-pcie0 errors=500               corrected PCI Express errors
  observatory topology set gpu0-nvswitch0 bandwidth=25% latency=5us
  observatory topology set gpu0-nvswitch0 state=up             as it was made
  observatory topology set gpu3 xid=79 lost=yes
  observatory topology set gpu2 temperature=91 throttle=thermal
  observatory topology set nic0 state=down

\b
A link takes   state=up|down  width=N  bandwidth=50%|25GB/s  latency=5us (added)
  of PCIe      speed=16GT/s|gen4  errors=N  nonfatal=N  fatal=N  replays=N
  of NVLink    errors=N  replays=N  recoveries=N
  of cables    loss=1%
A GPU takes    temperature  memory_temperature  power  clock  utilization  encoder  decoder  memory  throttle
               ecc_corrected  ecc_uncorrected  remapped_corrected  remapped_uncorrected  remapping_pending
               remapping_failed  xid=N  lost=yes|no
A card takes   state=up|down  loss=1%  errors=N

Counts are added to what was counted. Exit codes: 0 changed, 2 there is no such part, or it cannot be so.
""",
)
@click.argument("part", metavar="LINK|DEVICE")
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...")
@common_options
def set_part(part: str, changes: tuple[str, ...], state: Path, as_json: bool) -> None:
    """Change a LINK or DEVICE of the emulated machine that a running platform looks at.

    A link is called by its two ends, a device by its name; the machine's name may be left out. Frames cross the link
    as it is from then on, and receivers see of it what those of a real machine would.
    """
    from observatory.app.control import ControlClient
    from observatory.app.state_lock import platform_socket

    wanted = parse_changes(changes)
    client = ControlClient(platform_socket(state))
    try:
        now = client.ask("set_part", {"target": part, "changes": wanted}, SET_SECONDS)
    finally:
        client.close()
    if as_json:
        print_json(now)
    else:
        click.echo(words(now))


def parse_changes(changes: tuple[str, ...]) -> dict[str, str]:
    """`width=8` and others, by key. Raises ModelError: one of them is none, or a key comes twice."""
    found: dict[str, str] = {}
    for change in changes:
        key, mark, value = change.partition("=")
        if not mark or not key.strip() or not value.strip():
            raise ModelError(f"{change!r} is no change", mend="write KEY=VALUE, for example width=8")
        if key.strip() in found:
            raise ModelError(f"{key.strip()} is given twice", mend="give each property one value")
        found[key.strip()] = value.strip()
    return found


def words(now: Mapping[str, Any]) -> str:
    """What the link or device is now, and where telemetry shows it."""
    if "link" not in now:
        told = ", ".join(f"{key} {value}" for key, value in now.items() if key not in ("device", "kind"))
        return f"{now['device']}: {told}"
    parts = [str(now["state"])]
    if now["width"] is not None:
        parts.append(f"{now['width']} of {now['best_width']} {'NVLinks' if now['kind'] == 'nvlink' else 'lanes'}")
    if now["speed"] is not None:
        parts.append(str(now["speed"]))
    if now["bandwidth_bytes_per_second"] is not None and now["state"] != "down":
        rate = rate_text(now["bandwidth_bytes_per_second"])
        parts.append(f"{rate} ({now['bandwidth_share']:.0%} of what it had)" if now["bandwidth_share"] < 1 else rate)
    if now["added_latency_seconds"]:
        parts.append(f"{seconds_text(now['added_latency_seconds'])} slower to answer")
    if now["loss"]:
        parts.append(f"{now['loss']:.2%} lost")
    parts += [f"{count} {kind} errors" for kind, count in now["errors"].items() if count]
    return "\n".join([f"{now['link']}: {', '.join(parts)}", *(f"  shown in {where}" for where in now["shown_in"])])
