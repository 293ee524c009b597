"""`observatory plan`: a placement and its decision record, running nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from observatory.app.cli.common import common_options, print_json, warn

if TYPE_CHECKING:
    from rich.console import Console

    from observatory.app.typed import TypedPipeline
    from observatory.model.plan import DecisionRecord
    from observatory.model.topology import Topology


@click.command(
    "plan",
    epilog="""\b
Examples:
  observatory plan ladder.yaml --input film.mp4        on the shipped 8-GPU node
  observatory plan ladder.yaml --topology real         on this machine
  observatory plan ladder.yaml --topology rack.yaml --json > decision.json

Nothing runs; the input is opened to learn its size and rate. The decision is kept under --state.
Exit codes: 0 placed, 2 bad input, or a pipeline that cannot be placed on this topology (it says why).
""",
)
@click.argument("pipeline", required=False, type=click.Path(path_type=Path))
@click.option("--input", "inputs", multiple=True, metavar="[OPERATOR=]FILE", help="Video to read; repeatable.")
@click.option("--topology", metavar="FILE|real", help="Where to place operators. Default: a shipped 8-GPU node.")
@common_options
def command(pipeline: Path | None, inputs: tuple[str, ...], topology: str | None, state: Path, as_json: bool) -> None:
    """Place PIPELINE (a Media Pipeline Spec; default: the shipped ABR ladder) on a topology and explain it."""
    from observatory.app.cli.run import load_typed
    from observatory.app.gateways import Gateways
    from observatory.model.cost import CostParameters
    from observatory.topology.load import load_topology
    from scheduler.audit import AuditStore
    from scheduler.errors import AuditError
    from scheduler.solver import place

    graph = load_topology(topology)
    with Gateways() as gateways:
        typed = load_typed(pipeline, inputs, None, gateways)
    for words in typed.warnings:
        warn(words)
    kinds = {name: operator.kind for name, operator in typed.operators.items()}
    _, decision = place(typed.pipeline, typed.edges, graph, CostParameters(), kinds, trigger="plan")
    try:
        with AuditStore(state) as audit:
            audit.save(decision)
    except AuditError as error:  # a plan is worth showing even where it cannot be kept
        warn(f"the decision is not kept: {error}")
    if as_json:
        print_json(decision)
        return
    from rich.console import Console

    show(Console(), typed, graph, decision)


def show(console: Console, typed: TypedPipeline, topology: Topology, decision: DecisionRecord) -> None:
    """A decision for people: where each operator goes, what each edge costs, and what decided it."""
    from rich.table import Table

    from observatory.app.units import bytes_text, seconds_text

    pipeline = typed.pipeline.name
    plain = {"box": None, "padding": (0, 2, 0, 0), "title_justify": "left", "title_style": "bold"}
    finish = {(c.operator, c.device): c.finish_seconds for c in decision.score_breakdown}
    names = {d.id: d.name or "" for d in topology.devices}
    operators = Table(title=f"{pipeline} on {topology.name or ', '.join(topology.sources)}", **plain)  # type: ignore[arg-type]
    for heading in ("operator", "op", "device", ""):
        operators.add_column(heading)
    operators.add_column("ends at", justify="right")
    for name, operator in typed.operators.items():
        device = decision.final_placement[f"{pipeline}/{name}"]
        ends = seconds_text(finish.get((name, device)))
        operators.add_row(name, operator.node.op, device, f"[dim]{names[device]}[/]", ends)
    console.print(operators)
    edges = Table(title="\nedges, per frame", **plain)  # type: ignore[arg-type]
    edges.add_column("edge")
    for heading in ("bytes", "transfer", "share"):
        edges.add_column(heading, justify="right")
    edges.add_column("path")
    for edge in decision.edges:
        edges.add_row(
            edge.edge,
            bytes_text(edge.bytes_per_frame),
            seconds_text(edge.predicted_seconds),
            f"{edge.share:.0%}" if edge.path else "",
            way(topology, edge.producer_device, edge.path) or "[dim]stays on the device[/]",
        )
    console.print(edges)
    console.print()
    for words in _summary(decision):
        console.print(words, highlight=False, soft_wrap=True)


def _summary(decision: DecisionRecord) -> list[str]:
    from observatory.app.units import seconds_text

    bound = decision.lower_bound
    lines = [
        f"transfer   {seconds_text(decision.predicted_cost)} per frame"
        + ("" if bound is None else f" (no placement takes less than {seconds_text(bound)})"),
        f"makespan   {seconds_text(decision.makespan_seconds)} from a frame's start to its end",
    ]
    if decision.runner_up:
        moved = [
            f"{k.rpartition('/')[2]} on {v}" for k, v in decision.runner_up.items() if v != decision.final_placement[k]
        ]
        lines.append(f"runner-up  {', '.join(moved)}")
    if decision.binding_constraint:
        lines.append(f"binding    {decision.binding_constraint}")
    lines += [f"[yellow]not kept[/]   {wish}" for wish in decision.unmet_wishes]
    lines += [f"[dim]note       {note}[/]" for note in decision.notes]
    lines.append(f"[dim]decision   {decision.id}, {decision.solver}, {seconds_text(decision.solve_seconds)}[/]")
    return lines


def way(topology: Topology, start: str, path: tuple[str, ...]) -> str:
    """A path in words: `gpu0 -nvlink- nvswitch0 -nvlink- gpu3`; the node's name is left out when there is only one."""
    links = {link.id: link for link in topology.links}
    prefix = f"{topology.nodes[0].id}/" if len(topology.nodes) == 1 else ""
    words, here = start.removeprefix(prefix) if path else "", start
    for link in (links[name] for name in path):
        here = link.b if link.a == here else link.a
        words += f" -{link.kind.value}- {here.removeprefix(prefix)}"
    return words
