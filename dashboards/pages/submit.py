"""Submit a pipeline from the page, and remove one."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import dash_mantine_components as dmc  # type: ignore[import-untyped]
from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboards import components, ids
from dashboards.api import Api
from dashboards.browser import aria, in_browser
from dashboards.components import Component
from dashboards.errors import DashboardError

EXAMPLE = """\
apiVersion: media.observatory/v1
kind: MediaPipeline
metadata: {name: preview}
spec:
  operators:
    - {name: decode, op: decode}
    - {name: small,  op: scale,  inputs: [decode], params: {width: 480, height: -2}}
    - {name: enc,    op: encode, inputs: [small],  params: {codec: libx264, bitrate: 600k}}
    - {name: out,    op: mux,    inputs: [enc],    params: {path: preview.mp4}}
"""


def dialogs() -> Component:
    """Both dialogs, closed."""
    return html.Div([_submit(), _remove()])


def _submit() -> Component:
    return dmc.Modal(
        id=ids.SUBMIT_DIALOG,
        title="Submit a pipeline",
        size="xl",
        opened=False,
        closeButtonProps={"aria-label": "Close"},
        children=[
            dcc.Upload(
                html.Span(["Drop a pipeline file here, or ", html.Span("choose one", className="link")]),
                id=ids.SUBMIT_UPLOAD,
                className="drop",
                accept=".yaml,.yml",
                max_size=1 << 20,
            ),
            dmc.Textarea(
                id=ids.SUBMIT_SPEC,
                label="Pipeline",
                description="The text of a media pipeline file (YAML)",
                placeholder=EXAMPLE,
                autosize=True,
                minRows=9,
                maxRows=18,
                spellCheck=False,
                className="code-field",
            ),
            html.Div(
                [
                    dmc.TextInput(
                        id=ids.SUBMIT_INPUTS,
                        label="Input",
                        description="File or address; NAME=FILE, … if there are several",
                        placeholder="empty: FFmpeg's test picture",
                    ),
                    dmc.TextInput(
                        id=ids.SUBMIT_FOLDER,
                        label="Folder",
                        description="Where outputs with relative paths are written",
                        placeholder="empty: the platform's own",
                    ),
                ],
                className="two-columns fields",
            ),
            html.Div(id=ids.SUBMIT_ANSWER, **aria(live="polite")),
            html.Div(dmc.Button("Submit", id=ids.SUBMIT_GO), className="dialog-actions"),
            dcc.Store(id=ids.SUBMIT_FILE),
        ],
    )


def _remove() -> Component:
    return dmc.Modal(
        id=ids.REMOVE_DIALOG,
        title="Remove the pipeline?",
        opened=False,
        closeButtonProps={"aria-label": "Close"},
        children=[
            html.Div(id=ids.REMOVE_QUESTION),
            html.Div(id=ids.REMOVE_ANSWER, **aria(live="polite")),
            html.Div(
                [
                    dmc.Button("Keep it", id=ids.REMOVE_STAY, variant="default"),
                    dmc.Button("Remove", id=ids.REMOVE_GO, color="red"),
                ],
                className="dialog-actions",
            ),
        ],
    )


def read_inputs(text: str | None) -> dict[str, str]:
    """`film.mp4` is the input of the only source; `a=one.mp4, b=two.mp4` names them.

    A comma or an equals sign belongs to the address unless what stands before the sign is a plain name.
    """
    found: dict[str, str] = {}
    last = ""
    for part in (text or "").split(","):
        name, sign, path = part.strip().partition("=")
        if sign and name.replace("-", "").replace("_", "").isalnum():
            last = name
            found[name] = path.strip()
        elif last or "" in found:
            found[last] += "," + part
        elif part.strip():
            found[""] = part.strip()
    return {name: path.strip() for name, path in found.items()}


def register(app: Dash, api: Api) -> None:
    """The callbacks of both dialogs."""

    @app.callback(
        Output(ids.SUBMIT_DIALOG, "opened"),
        Output(ids.SUBMIT_ANSWER, "children"),
        Output(ids.URL, "search"),
        Input(ids.SUBMIT_GO, "n_clicks"),
        State(ids.SUBMIT_SPEC, "value"),
        State(ids.SUBMIT_FILE, "data"),
        State(ids.SUBMIT_INPUTS, "value"),
        State(ids.SUBMIT_FOLDER, "value"),
        prevent_initial_call=True,
        running=[(Output(ids.SUBMIT_GO, "loading"), True, False)],
    )
    async def submit(
        _clicks: int | None, spec: str | None, file: str | None, inputs: str | None, folder: str | None
    ) -> tuple[Any, Any, Any]:
        if not (spec or "").strip():
            return no_update, components.warning("Write or drop a pipeline first."), no_update
        try:
            said = await api.submit(spec or "", file, read_inputs(inputs), (folder or "").strip() or None)
        except DashboardError as error:
            return no_update, components.problem(error, title="It was not submitted"), no_update
        return False, None, f"?pipeline={said['name']}" if said.get("name") else no_update

    @app.callback(
        Output(ids.SUBMIT_SPEC, "value"),
        Output(ids.SUBMIT_FILE, "data"),
        Output(ids.SUBMIT_ANSWER, "children", allow_duplicate=True),
        Input(ids.SUBMIT_UPLOAD, "contents"),
        State(ids.SUBMIT_UPLOAD, "filename"),
        prevent_initial_call=True,
    )
    async def dropped(contents: str | None, name: str | None) -> tuple[Any, Any, Any]:
        try:
            text = base64.b64decode((contents or "").partition(",")[2], validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return no_update, no_update, components.warning(f"{name} is not a text file in UTF-8.")
        return text, name, html.P(["Read from ", html.Code(name)], className="note")

    @app.callback(
        Output(ids.REMOVE_DIALOG, "opened"),
        Output(ids.REMOVE_ANSWER, "children"),
        Input(ids.REMOVE_GO, "n_clicks"),
        State(ids.DETAIL_NAME, "data"),
        prevent_initial_call=True,
        running=[(Output(ids.REMOVE_GO, "loading"), True, False)],
    )
    async def remove(_clicks: int | None, name: str) -> tuple[Any, Any]:
        try:
            await api.remove(name)
        except DashboardError as error:
            return no_update, components.problem(error, title="It was not removed")
        return False, None

    in_browser(
        app,
        "askRemove",
        Output(ids.REMOVE_DIALOG, "opened", allow_duplicate=True),
        Output(ids.REMOVE_QUESTION, "children"),
        Output(ids.REMOVE_ANSWER, "children", allow_duplicate=True),
        Input(ids.REMOVE_OPEN, "n_clicks"),
        State(ids.DETAIL_NAME, "data"),
        prevent_initial_call=True,
    )
    in_browser(
        app,
        "closeDialog",
        Output(ids.REMOVE_DIALOG, "opened", allow_duplicate=True),
        Input(ids.REMOVE_STAY, "n_clicks"),
        prevent_initial_call=True,
    )
    in_browser(
        app,
        "openDialog",
        Output(ids.SUBMIT_DIALOG, "opened", allow_duplicate=True),
        Input(ids.SUBMIT_OPEN, "n_clicks"),
        prevent_initial_call=True,
    )
