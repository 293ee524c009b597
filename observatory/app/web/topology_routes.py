"""Routes about the topology: what it is made of, and what moving data over it costs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from observatory.app.topology_costs import cost_document
from observatory.app.topology_document import topology_document
from observatory.app.web.answers import Cost, TopologyDocument
from observatory.app.web.backend import Backend
from observatory.app.web.examples import COST, TOPOLOGY
from observatory.app.web.frame_reading import dumped
from observatory.app.web.queries import NO_QUERY, CostQuery
from observatory.app.web.responses import GONE, MALFORMED, example, packed, packed_answer, problem


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
            key, lambda: packed(dumped(cost_document(known.topology, asked.level, asked.node))), takes_long=True
        )
        return packed_answer(request, body)

    return routes
