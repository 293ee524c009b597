"""Who is let in, how much may be sent, and the headers of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observatory.app.web.app import build_app, inside_client
from observatory.app.web.backend import Backend
from observatory.app.web.guard import Access, host_name
from tests.web.asking import Asker
from tests.web.platforms import FakePlatform

SPEC = {"spec": "kind: MediaPipeline"}


@pytest.fixture
def local(platform: FakePlatform) -> Iterator[Asker]:
    """The application as it is on 127.0.0.1, where `media1` is allowed too."""
    backend = Backend(platform.path, platform.state)
    access = Access.bound_to("127.0.0.1", ["media1"])
    with Asker(build_app(backend, access, with_pages=False), "127.0.0.1:8050") as client:
        yield client
    backend.close()


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8050",
        "LOCALHOST:1",
        "127.0.0.1",
        "127.1.2.3:8050",
        "[::1]:8050",
        "media1:80",
        "localhost.",
    ],
)
def test_our_own_names(local: Asker, host: str) -> None:
    assert local.get("/api/v1/snapshot", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1:8050",
        "[::2]",
        "",
        "a b",
        "[",
        "@localhost@x",
    ],
)
def test_foreign_names_get_nothing(local: Asker, platform: FakePlatform, host: str) -> None:
    for method, path in (("GET", "/api/v1/snapshot"), ("GET", "/"), ("GET", "/metrics"), ("POST", "/api/v1/pipelines")):
        answer = local.request(method, path, headers={"host": host})
        assert (answer.status_code, answer.json()["error"]["kind"]) == (421, "ForeignHost")
        assert "--allow-host" in answer.json()["error"]["mend"]
    assert platform.asked == {}


def test_elsewhere_any_name_is_ours_unless_some_are_named() -> None:
    assert Access.bound_to("0.0.0.0").knows("anything.example:80")
    named = Access.bound_to("0.0.0.0", ["Media1.Example."])
    assert [named.knows(h) for h in ("media1.example:8050", "localhost", "other")] == [True, True, False]


@given(st.text(max_size=60))
def test_any_host_header_is_understood_or_refused(host: str) -> None:
    name = host_name(host)
    assert name is None or isinstance(name, str)
    Access.bound_to("::1").knows(host)
    Access.bound_to("::1").trusts(host, host)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),  # not a browser
        ("http://127.0.0.1:8050", True),
        ("https://media1", True),  # the name that was allowed, as a proxy has it
        ("https://media1.evil.example", False),
        ("http://[", False),
        ("http://127.0.0.1:9999", False),  # another server on this machine is foreign, too
        ("http://evil.example", False),
        ("https://evil.example:8050", False),
        ("http://127.0.0.1:8050.evil.example", False),
        ("null", False),
        ("", False),
    ],
)
def test_foreign_pages_change_nothing(local: Asker, platform: FakePlatform, origin: str | None, allowed: bool) -> None:
    headers = {} if origin is None else {"origin": origin}
    submitted = local.post("/api/v1/pipelines", json=SPEC, headers=headers)
    removed = local.delete("/api/v1/pipelines/abr-ladder", headers=headers)
    if allowed:
        assert (submitted.status_code, removed.status_code) == (201, 200)
    else:
        assert (submitted.status_code, removed.status_code) == (403, 403)
        assert submitted.json()["error"]["kind"] == "ForeignOrigin"
        assert platform.asked == {}


def test_a_form_of_another_site_changes_nothing(local: Asker, platform: FakePlatform) -> None:
    answer = local.post("/api/v1/pipelines", json=SPEC, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403
    assert platform.asked == {}


def test_no_other_site_may_read_an_answer(local: Asker) -> None:
    for method in ("GET", "OPTIONS"):
        answer = local.request(method, "/api/v1/snapshot", headers={"origin": "http://evil.example"})
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/", "/api/v1/snapshot", "/api/v1/nothing", "/metrics", "/api/v1/frames?limit=0"])
def test_headers_of_every_answer(local: Asker, path: str) -> None:
    headers = local.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["object-src"] == "'none'"


def test_large_bodies_are_refused(local: Asker, platform: FakePlatform) -> None:
    fitting = {"spec": "#" * (1_000_000)}
    assert local.post("/api/v1/pipelines", json=fitting).status_code == 201
    answer = local.post("/api/v1/pipelines", json={"spec": "#" * (1 << 20)})
    assert (answer.status_code, answer.json()["error"]["kind"]) == (413, "BodyTooLarge")
    assert platform.asked["submit"] == 1


def test_a_body_without_a_length_is_not_read_for_ever(local: Asker, platform: FakePlatform) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 65536

    answer = local.post("/api/v1/pipelines", content=endless())
    assert answer.status_code == 413
    assert sent <= 20
    assert platform.asked == {}


def test_a_body_that_does_not_come_is_not_waited_for(
    local: Asker, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("observatory.app.web.guard.BODY_SECONDS", 0.1)

    async def slow() -> AsyncIterator[bytes]:
        yield b'{"spec": '
        await asyncio.sleep(60)
        yield b'"x"}'

    answer = local.post("/api/v1/pipelines", content=slow())
    assert (answer.status_code, answer.json()["error"]["kind"]) == (408, "BodyTooSlow")
    assert platform.asked == {}


def test_our_own_pages_ask_from_inside(platform: FakePlatform) -> None:
    async def ask() -> tuple[int, int]:
        backend = Backend(platform.path, platform.state)
        app = build_app(backend, Access.bound_to("127.0.0.1"), with_pages=False)
        async with inside_client(app) as client:
            read = await client.get("/api/v1/snapshot")
            assert "content-encoding" not in read.headers
            changed = await client.post("/api/v1/pipelines", json=SPEC)
        backend.close()
        return read.status_code, changed.status_code

    assert asyncio.run(ask()) == (200, 201)
