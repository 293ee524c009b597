"""Who may ask, how much may be sent, and the headers that every answer carries.

A page of another site must not reach a server on the reader's own machine. Three ways are closed: a foreign name that
resolves to this address (DNS rebinding: the Host header tells), a foreign page's request that changes something or
opens a WebSocket (the Origin header tells), and a foreign page that reads an answer (there are no CORS headers).
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

INSIDE = "observatory.inside"
"""Key of the scope that marks requests of this process's own pages: nothing from outside can set it."""

MOST_API_BODY_BYTES = 1 << 20
MOST_PAGE_BODY_BYTES = 16 << 20  # the pages send back what they show
BODY_SECONDS = 30.0

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(slots=True)
class Access:
    """What is let in. `hosts` None: any name. `script_hashes` are those of the pages' inline scripts (CSP level 2)."""

    hosts: frozenset[str] | None = None
    script_hashes: list[str] = field(default_factory=list)

    @classmethod
    def bound_to(cls, address: str, allowed: Iterable[str] = ()) -> Access:
        """For a server at this address: on a loopback address only loopback names and the `allowed` get in.

        Elsewhere any name does, unless some are `allowed`: then only those and loopback names.
        """
        names = frozenset(name.lower().rstrip(".") for name in allowed)
        if not names and not _is_loopback(address):
            return cls()
        return cls(hosts=names)

    def knows(self, host: str) -> bool:
        """Whether a request to this name (a Host header) is meant for us."""
        if self.hosts is None:
            return True
        name = host_name(host)
        return name is not None and (_is_loopback(name) or name in self.hosts)

    def trusts(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may change something: our own pages, and those of allowed names."""
        try:
            parts = urlsplit(origin)
            name = parts.hostname
        except ValueError:
            return False
        named = self.hosts is not None and name in self.hosts  # behind a proxy, our name there is not our Host header
        return parts.scheme in ("http", "https") and (named or parts.netloc.lower() == host.lower())

    def policy(self) -> str:
        """The Content-Security-Policy: only our own files, WebSockets to us, and the pages' own inline scripts.

        Inline styles are allowed, because the components of the pages set them.
        """
        scripts = " ".join(["'self'", *(f"'{h.strip(chr(39))}'" for h in self.script_hashes)])
        return "; ".join(
            (
                "default-src 'self'",
                f"script-src {scripts}",
                "style-src 'self' 'unsafe-inline'",
                "img-src 'self' data: blob:",
                "font-src 'self' data:",
                "connect-src 'self'",
                "worker-src 'self' blob:",
                "object-src 'none'",
                "base-uri 'none'",
                "form-action 'self'",
                "frame-ancestors 'none'",
            )
        )


def host_name(host: str) -> str | None:
    """The name in a Host header: without port, in lower case; None when it is none."""
    if any(character in host for character in "@/?#\\ "):
        return None
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return None
    return name.rstrip(".") if name else None


def _is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware that refuses what is foreign or too large, and adds the headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] not in ("http", "websocket") or scope.get(INSIDE):
            await self._app(scope, receive, send)
            return
        wrapped = self._with_headers(scope, send)
        if refusal := self._foreign(scope):
            await _refuse(scope, wrapped, *refusal)
        elif scope["type"] == "http" and scope["method"] not in _SAFE:
            await self._with_body(scope, receive, wrapped)
        else:
            await self._app(scope, receive, wrapped)

    def _foreign(self, scope: Scope) -> tuple[int, str, str, str] | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._access.knows(host):
            words = f"this server is not called {host!r}" if host else "the request names no host"
            return 421, "ForeignHost", words, "use http://localhost, or allow the name: --allow-host NAME"
        if scope["type"] == "http" and scope["method"] in _SAFE:
            return None
        origin = headers.get("origin")
        if origin is not None and not self._access.trusts(origin, host):
            return 403, "ForeignOrigin", f"a page of {origin!r} may not do this", "use the pages of this server"
        if scope["type"] == "http" and headers.get("sec-fetch-site") == "cross-site" and origin is None:
            return 403, "ForeignOrigin", "a page of another site may not do this", "use the pages of this server"
        return None

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body first: it is small, and one that never ends is noticed here."""
        most = MOST_API_BODY_BYTES if scope["path"].startswith("/api/") else MOST_PAGE_BODY_BYTES
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(receive, most)
        except TimeoutError:
            await _refuse(scope, send, 408, "BodyTooSlow", f"the body did not arrive within {BODY_SECONDS:g} s", None)
            return
        if body is None:
            await _refuse(scope, send, 413, "BodyTooLarge", f"the body is larger than {most} bytes", None)
            return
        message: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def replay() -> Message:
            nonlocal message
            if message is not None:
                first, message = message, None
                return first
            return await receive()

        await self._app(scope, replay, send)

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        fresh = scope["path"].startswith(("/api/", "/metrics"))

        async def wrapped(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("content-security-policy", self._access.policy())
                if fresh:
                    headers.setdefault("cache-control", "no-store")
            await send(message)

        return wrapped


async def _read_body(receive: Receive, most: int) -> bytes | None:
    """The body; None as soon as it is larger than `most` bytes."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)  # the asker left
        body += message.get("body", b"")
        if len(body) > most:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _refuse(scope: Scope, send: Send, status: int, kind: str, message: str, mend: str | None) -> None:
    error: dict[str, Any] = {"kind": kind, "message": message, "file": None, "line": None, "mend": mend}
    body = json.dumps({"error": error}).encode()
    prefix = "http"
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": message})
            return
        prefix = "websocket.http"
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status in (408, 413):
        headers.append((b"connection", b"close"))  # what is left of the body is not read
    await send({"type": f"{prefix}.response.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": body, "more_body": False})
