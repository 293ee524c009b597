"""A web server in a process of its own, with less patience than the real one: STATE CONTROL STALLED PING.

Prints its port. Started by tests that watch its memory; without pages, which would take a second to load.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from observatory.app.web.app import build_app
from observatory.app.web.backend import Backend
from observatory.app.web.guard import Access
from observatory.app.web.process import bind
from observatory.app.web.serve import Patience, make_server

state, control, stalled, ping = sys.argv[1:]
listening = bind("127.0.0.1", 0)
app = build_app(Backend(Path(control), Path(state)), Access.bound_to("127.0.0.1"), with_pages=False)
print(listening.getsockname()[1], flush=True)
patience = Patience(stalled_seconds=float(stalled), ping_seconds=float(ping))
asyncio.run(make_server(app, patience).serve(sockets=[listening]))
