"""`observatory doctor`: what this machine allows."""

from __future__ import annotations

from pathlib import Path

import click

from observatory.app.cli.common import common_options, print_json


@click.command(
    "doctor",
    epilog="""\b
Examples:
  observatory doctor            what works here, what does not, and the mend
  observatory doctor --json
""",
)
@common_options
def command(state: Path, as_json: bool) -> None:
    """Try the smallest real thing of each kind and say whether it works, why not, and the mend."""
    from observatory.app.doctor import examine

    report = examine()
    if as_json:
        print_json(report)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for area in type(report).model_fields:
        findings = getattr(report, area)
        table = Table(
            title=area, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0), show_header=False
        )
        for name, finding in findings.items():
            mark = "[green]works[/]" if finding.works else "[red]no[/]"
            words = finding.reason + (f"; mend: {finding.mend}" if finding.mend else "")
            table.add_row(f"  {name}", mark, words)
        if not findings:
            table.add_row("  none in this version", "", "")
        console.print(table)
