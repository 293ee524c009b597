"""Routes about the topology: what it is made of, and what moving data over it costs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from observatory.app.topology_document import topology_document
from observatory.app.web.answers import Cost, TopologyDocument
from observatory.app.web.backend import Backend
from observatory.app.web.examples import COST, TOPOLOGY
from observatory.app.web.frame_reading import dumped
from observatory.app.web.queries import NO_QUERY, CostQuery
from observatory.app.web.responses import GONE, MALFORMED, example, packed, packed_answer, problem
from observatory.documents import did_you_mean
from observatory.model.cost import CostParameters
from observatory.model.topology import Topology
from observatory.topology.cluster_costs import representatives
from observatory.topology.cost_matrix import LARGEST_DENSE, MESSAGE_BYTES, CostMatrix
from observatory.topology.errors import NoSuchVertex

Level = Literal["auto", "nodes", "devices"]


def topology_routes(backend: Backend) -> APIRouter:
    """The routes. Both documents are worked out once for each version of the topology."""
    routes = APIRouter(prefix="/api/v1", tags=["topology"], responses={422: MALFORMED, 503: GONE})

    @routes.get("/topology", dependencies=NO_QUERY, response_model=TopologyDocument, responses={200: example(TOPOLOGY)})
    async def topology(request: Request) -> Response:
        """The topology that the platform places on: nodes, devices, switches, links. Unknown values are null."""
        known = await backend.topology()
        body = await backend.worked_out(
            ("topology", known.version), lambda: packed(dumped(topology_document(known.topology)))
        )
        return packed_answer(request, body)

    @routes.get(
        "/topology/cost",
        response_model=Cost,
        responses={
            200: example(COST),
            404: problem("There is no such node", "the topology has no node 'n9'", "NoSuchVertex", "known: n0"),
        },
    )
    async def cost(request: Request, asked: Annotated[CostQuery, Query()]) -> Response:
        """C_ij, the predicted seconds to move one message of 1 MiB, between devices or between nodes.

        Between nodes it is the cost from the first CPU of one (else its first device) to that of the other. Never more
        than 512 rows: `truncated` says that there are more, `node` shows the devices of one.
        """
        known = await backend.topology()
        key = ("cost", known.version, asked.level, asked.node)
        body = await backend.worked_out(
            key, lambda: packed(cost_document(known.topology, asked.level, asked.node)), takes_long=True
        )
        return packed_answer(request, body)

    return routes


def cost_document(topology: Topology, level: Level, node: str | None) -> bytes:
    """The document of /topology/cost.

    Raises:
        NoSuchVertex: there is no such node.
    """
    if node is not None and node not in {n.id for n in topology.nodes}:
        mend = did_you_mean(node, [n.id for n in topology.nodes])
        raise NoSuchVertex(f"the topology has no node {node!r}", mend=mend)
    devices = [d.id for d in topology.devices if node in (None, d.node)]
    if level == "auto":
        level = "devices" if node is not None or len(devices) <= LARGEST_DENSE else "nodes"
    if level == "nodes":
        labels, ends = _nodes(topology, node)
    else:
        labels, ends = devices, devices
    matrix = CostMatrix(topology, CostParameters())
    return dumped(
        {
            "level": level,
            "node": node,
            "message_bytes": MESSAGE_BYTES,
            "unit": "seconds",
            "labels": labels[:LARGEST_DENSE],
            "seconds": matrix.dense(ends[:LARGEST_DENSE]),
            "truncated": len(labels) > LARGEST_DENSE,
        }
    )


def _nodes(topology: Topology, node: str | None) -> tuple[list[str], list[str]]:
    """Nodes that have a device, and the device that stands for each."""
    ends = representatives(topology)
    labels = [n.id for n in topology.nodes if n.id in ends and node in (None, n.id)]
    return labels, [ends[label] for label in labels]
