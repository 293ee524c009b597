"""The HTTP API as the pages see it: one method per question, errors with their mend. Nothing else is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from dashboards.errors import ApiRefused, ApiUnreachable
from observatory.model.status import Snapshot

Document = dict[str, Any]
SUBMIT_SECONDS = 60.0  # a pipeline's inputs are opened before the answer


class Api:
    """Asks /api/v1 through a client whose requests go there. Every method raises ApiRefused and ApiUnreachable."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def snapshot(self) -> Snapshot:
        """Everything at this moment."""
        said = await self._ask("GET", "snapshot")
        try:
            return Snapshot.model_validate(said)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            words = f"/api/v1/snapshot is not what these pages understand: {where}: {first['msg']}"
            raise ApiUnreachable(words, mend="restart the web process: it is of another version") from None

    async def submit(self, spec: str, file: str | None, inputs: Mapping[str, str], folder: str | None) -> Document:
        """Start a pipeline from the text of its file. `inputs` names one per source operator, "" for the only one."""
        body = {"spec": spec, "file": file, "inputs": dict(inputs), "folder": folder}
        body = {key: value for key, value in body.items() if value is not None}
        return await self._ask("POST", "pipelines", json=body, timeout=SUBMIT_SECONDS)

    async def remove(self, name: str) -> Document:
        """Finish what is in flight, and take the pipeline out."""
        return await self._ask("DELETE", f"pipelines/{quote(name, safe='')}", timeout=SUBMIT_SECONDS)

    async def topology(self) -> Document:
        """The document of `observatory topology show`."""
        return await self._ask("GET", "topology")

    async def cost(self, level: str = "auto", node: str | None = None) -> Document:
        """Predicted seconds per message: {level, node, message_bytes, labels, seconds, truncated}."""
        return await self._ask("GET", "topology/cost", {"level": level, "node": node}, timeout=60.0)

    async def incidents(self, state: str | None = None, limit: int = 100) -> Document:
        """What went wrong with the hardware, {incidents}, the latest first; `state` is open or closed."""
        return await self._ask("GET", "incidents", {"state": state, "limit": limit})

    async def streams(self) -> list[Document]:
        """The streams that the frame store knows."""
        said = await self._ask("GET", "streams")
        return list(said.get("streams", []))

    async def frames(self, stream: str | None, epoch: int | None = None, limit: int = 200) -> Document:
        """The latest frames, {frames, lost}."""
        return await self._ask("GET", "frames", {"stream": stream, "epoch": epoch, "limit": limit})

    async def slowest(self, stream: str | None, epoch: int | None = None, count: int = 50) -> Document:
        """The frames that took longest, {frames}."""
        return await self._ask("GET", "frames/slowest", {"stream": stream, "epoch": epoch, "count": count})

    async def find(self, **which: str | int | None) -> Document:
        """One frame over all its hops, by `stream`, `pts` or `source_index`, `time_base`, `epoch`."""
        return await self._ask("GET", "frames/find", which)

    async def _ask(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, *, json: Any = None, timeout: float = 10.0
    ) -> Document:
        known = {key: value for key, value in (query or {}).items() if value is not None}
        try:
            answer = await self._client.request(
                method, f"/api/v1/{path}", params=known or None, json=json, timeout=timeout
            )
        except httpx.HTTPError as error:
            words = f"the API does not answer: {str(error) or type(error).__name__}"
            raise ApiUnreachable(words, mend="is `observatory up` still running? Look at its output") from None
        if answer.is_success:
            return _document(answer)
        said = _document(answer) if "json" in answer.headers.get("content-type", "") else {}
        raise ApiRefused(answer.status_code, _error(said))


def _document(answer: httpx.Response) -> Document:
    if answer.status_code == httpx.codes.NO_CONTENT:
        return {}
    try:
        said = answer.json()
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise ApiUnreachable(
            f"{answer.request.url.path} did not answer with a JSON object", mend="is another server on this port?"
        )
    return cast(Document, said)


def _error(said: Document) -> Mapping[str, Any]:
    """What an error body says: ours is {"error": {...}}, FastAPI's own {"detail": ...}."""
    error = said.get("error")
    if isinstance(error, dict):
        return error
    detail = said.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        where = ".".join(str(part) for part in detail[0].get("loc", ())[1:])
        return {"message": f"{where}: {detail[0].get('msg')}" if where else str(detail[0].get("msg"))}
    return {"message": str(detail)} if detail else {}
