"""Routes about incidents of the hardware: what this process reads from the state directory itself."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from observatory.anomalies.errors import NoSuchIncident
from observatory.anomalies.store import IncidentStore
from observatory.app.web.answers import Incidents
from observatory.app.web.backend import Backend
from observatory.app.web.examples import INCIDENT
from observatory.app.web.queries import NO_QUERY, IncidentsQuery
from observatory.app.web.responses import MALFORMED, example, json_answer, problem
from observatory.model.incident import Incident

UNREADABLE = problem("The store cannot be read", "is damaged or no database", "StoreError")


def incident_routes(backend: Backend) -> APIRouter:
    """The routes. A store that is not there yet gives an empty list."""
    routes = APIRouter(prefix="/api/v1", tags=["incidents"], responses={422: MALFORMED, 500: UNREADABLE})

    @routes.get("/incidents", response_model=Incidents, responses={200: example({"incidents": [INCIDENT]})})
    async def incidents(asked: Annotated[IncidentsQuery, Query()]) -> Response:
        """What went wrong with the hardware, with its evidence, newest first. Open ones are in /snapshot, too."""

        def read() -> str:
            with IncidentStore(backend.state) as store:
                return Incidents(incidents=tuple(store.list(asked.state, asked.limit))).model_dump_json()

        return json_answer(await backend.read(read))

    @routes.get(
        "/incidents/{id}",
        dependencies=NO_QUERY,
        response_model=Incident,
        responses={
            200: example(INCIDENT),
            404: problem("There is no such incident", "there is no incident 'i7'", "NoSuchIncident"),
        },
    )
    async def incident(
        incident_id: Annotated[str, Path(alias="id", description="The incident's id, as in the list")],
    ) -> Response:
        """One incident, as it is now."""

        def read() -> str:
            with IncidentStore(backend.state) as store:
                found = store.find(incident_id)
            if found is None:
                raise NoSuchIncident(f"there is no incident {incident_id!r}", mend="GET /api/v1/incidents lists them")
            return found.model_dump_json()

        return json_answer(await backend.read(read))

    return routes
