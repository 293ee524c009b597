"""`observatory incidents`: what is wrong with hardware, under a platform or in recorded logs and dumps."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from observatory.app.cli.common import common_options, print_json, warn
from observatory.app.errors import NotRunning
from observatory.model.errors import ExitCode

if TYPE_CHECKING:
    from observatory.anomalies.recorded.files import Analysis
    from observatory.model.incident import Incident

_COLORS = {"critical": "red", "warning": "yellow", "info": "cyan"}
_EVIDENCE_SHOWN = 3


@click.command("incidents")
@click.argument("sources", nargs=-1, metavar="[FILE]...")
@click.option("--open", "only_open", is_flag=True, help="Of the platform: only those that are not over.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many of the platform."
)
@click.option("--node", default="recorded", show_default=True, metavar="NAME", help="What to call the machine.")
@common_options
def command(sources: tuple[str, ...], only_open: bool, limit: int, node: str, state: Path, as_json: bool) -> int:
    """Show what went wrong with the hardware under a platform; or look for it in FILEs recorded on one machine.

    Files are recognised by their content: logs of the kernel (dmesg, /dev/kmsg, pstore, journald, syslog), NVIDIA's
    fabric manager; nvidia-smi (--query-gpu as CSV, -q -x, nvlink -s, the table); rocm-smi --json; ibstatus, perfquery,
    ibswinfo, ethtool; health dumps of machines, with the manifest of what they should have. Files given together are of
    the same machine.

    Exit code 0: no incident (without FILE: none that is open); 1: there are some; 2: a file cannot be read or is of no
    known form.

    \b
    Examples:
      observatory incidents                                   the latest, of the platform on this state directory
      observatory incidents --open --json
      dmesg | observatory incidents /dev/stdin
      observatory incidents kern.log nvlink.txt --node gpu17
      nvidia-smi --query-gpu=pci.bus_id,pcie.link.width.current,pcie.link.width.max,pstate --format=csv > gpus.csv
      observatory incidents gpus.csv --json
    """
    from observatory.anomalies.outputs import incidents_document

    if not sources:
        found, watched = _kept(state, only_open, limit), _watched(state)
        if not found and watched is Watched.NOBODY and not (state / "audit.db").exists():
            words = "no platform runs on this state directory, and none has kept an incident there"
            raise NotRunning(words, file=str(state), mend="start one (observatory up), name its --state, or give FILEs")
        if as_json:
            print_json({**incidents_document(found), "watched": watched.name.lower()})
        else:
            _show_kept(found, watched)
        return ExitCode.JOB_FAILED if any(one.state.value == "open" for one in found) else ExitCode.DONE
    from observatory.anomalies.recorded.files import analyse, read_recordings

    analysis = analyse(read_recordings(sources, node))
    if as_json:
        forms = [{"file": name, "form": form} for name, form in zip(sources, analysis.forms, strict=True)]
        print_json(
            {"node": node, "files": forms, "seen": analysis.seen_count, **incidents_document(analysis.incidents)}
        )
    else:
        _show(sources, analysis)
    return ExitCode.JOB_FAILED if analysis.incidents else ExitCode.DONE


def _kept(state: Path, only_open: bool, limit: int) -> list[Incident]:
    from observatory.anomalies.store import IncidentStore
    from observatory.model.incident import IncidentState

    with IncidentStore(state) as store:
        return store.list(IncidentState.OPEN if only_open else None, limit)


class Watched(Enum):
    """Whether anybody looks at the hardware now; the value is what that means for what is shown."""

    RECEIVERS = ""
    NO_RECEIVERS = "no receiver of the platform works: nothing would be noticed (observatory doctor says why)"
    NOBODY = "no platform runs on this state directory now: nobody looks any more"
    SILENT = "the platform does not answer: nobody knows what is true now"


def _watched(state: Path) -> Watched:
    from observatory.app.control import ask_all

    said = ask_all(state, "snapshot")
    looking = [one["telemetry"] for one in said.answers if one.get("telemetry")]
    if any(receiver["state"] == "working" for one in looking for receiver in one["receivers"]):
        return Watched.RECEIVERS
    if said.silent:
        return Watched.SILENT
    return Watched.NO_RECEIVERS if said.answers else Watched.NOBODY


def _show_kept(incidents: Sequence[Incident], watched: Watched) -> None:
    from datetime import datetime

    for incident in incidents:
        began = datetime.fromtimestamp(incident.opened_at)
        over = "" if incident.closed_at is None else f", over after {incident.closed_at - incident.opened_at:.0f} s"
        click.secho(f"{began:%Y-%m-%d %H:%M:%S}{over or ', open'}", dim=bool(over))
        _show_one(incident)
    if not incidents:
        click.echo("no incident" + (": nothing is wrong, as far as receivers can see" if not watched.value else ""))
    if watched.value:
        warn(watched.value)


def _show(sources: Sequence[str], analysis: Analysis) -> None:
    for incident in analysis.incidents:
        _show_one(incident)
    files = "1 file" if len(sources) == 1 else f"{len(sources)} files"
    count = len(analysis.incidents)
    found = "no incident" if count == 0 else "1 incident" if count == 1 else f"{count} incidents"
    click.echo(f"{found} in {files} ({analysis.seen_count} observations; {', '.join(sorted(set(analysis.forms)))})")


def _show_one(incident: Incident) -> None:
    severity = click.style(incident.severity.value, fg=_COLORS[incident.severity.value], bold=True)
    click.echo(f"{severity}  {incident.kind}  {incident.subject}: {incident.words}")
    for evidence in incident.evidence[:_EVIDENCE_SHOWN]:
        click.echo(f"    {evidence.source}: {evidence.words}")
    if len(incident.evidence) > _EVIDENCE_SHOWN:
        click.echo(f"    and {len(incident.evidence) - _EVIDENCE_SHOWN} more")
    if incident.affected:
        click.echo(f"    also affected: {', '.join(incident.affected)}")
    click.echo(f"    confidence {incident.confidence:.2f}; mend: {incident.mend}")
