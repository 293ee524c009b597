"""The web process: the HTTP API under /api/v1, the live feed, /metrics, and the pages.

    process          the platform's side: binds the port, starts the process, starts it again when it died
    __main__, serve  the process's own side: an inherited socket, uvicorn, and the ways it ends
    app              puts the routes together
    backend, kept    what is asked of the platform and read from the state directory, in threads, kept for a moment
    guard            who may ask: hosts, origins, sizes; the headers that every answer carries
    live             snapshots over a WebSocket
    answers, *_routes, errors    the documents and the routes
    reference, docs_page         the OpenAPI document as Markdown and as a page

Only `process` is for the platform: it imports neither FastAPI nor Dash.
"""
