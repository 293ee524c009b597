"""Health, snapshot, pipelines, metrics, topology: what the platform says, as HTTP answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from observatory.app.cli.main import run_cli
from observatory.app.submission import Submission
from observatory.app.web.answers import Cost, Health, Pipelines, Problem, TopologyDocument
from observatory.app.web.examples import PIPELINE
from observatory.app.web.frame_reading import FrameReading
from observatory.app.web.platform_routes import prefers_openmetrics
from observatory.model.status import PipelineStatus, Snapshot
from tests.web.asking import Asker
from tests.web.platforms import FakePlatform, cluster, pair


def test_health_with_and_without_a_platform(api: Asker, platform: FakePlatform) -> None:
    answer = api.get("/api/v1/health")
    assert answer.status_code == 200
    health = Health.model_validate(answer.json())
    assert (health.status, health.pages) == ("ok", "none")
    assert health.platform is not None
    assert health.platform.pid == 4700


def test_the_snapshot(api: Asker, platform: FakePlatform) -> None:
    answer = api.get("/api/v1/snapshot")
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    snapshot = Snapshot.model_validate(answer.json())
    assert snapshot.pipelines[0].streams[0].latency_p50_seconds == 0.041
    assert answer.json()["platform"]["config_file"] is None  # unknown is null, not left out


def test_many_questions_at_once_ask_the_platform_once(api: Asker, platform: FakePlatform) -> None:
    seen = {api.get("/api/v1/snapshot").text for _ in range(50)}
    assert platform.asked["snapshot"] <= len(seen) + 1 < 25


def test_pipelines(api: Asker) -> None:
    answer = api.get("/api/v1/pipelines")
    assert [p.name for p in Pipelines.model_validate(answer.json()).pipelines] == ["abr-ladder"]
    assert api.get("/api/v1/pipelines/abr-ladder").json() == PipelineStatus.model_validate(PIPELINE).model_dump(
        mode="json"
    )


@pytest.mark.parametrize(
    "name", ["abr-laddr", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "a%00b", "%ff", "%F0%9F%8E%AC", "..", "x" * 5000]
)
def test_names_that_are_none(api: Asker, name: str) -> None:
    for method in ("GET", "DELETE"):
        answer = api.request(method, f"/api/v1/pipelines/{name}")
        assert answer.status_code in (404, 405)
        Problem.model_validate(answer.json())


def test_a_misspelt_pipeline_is_named(api: Asker) -> None:
    error = api.get("/api/v1/pipelines/abr-laddr").json()["error"]
    assert (error["kind"], error["mend"]) == ("NoSuchPipeline", "did you mean abr-ladder?")


def test_submit(api: Asker, platform: FakePlatform) -> None:
    body = {"spec": "kind: MediaPipeline", "file": "a.yaml", "inputs": {"decode": "b.mp4"}, "folder": "/srv"}
    answer = api.post("/api/v1/pipelines", json=body)
    assert (answer.status_code, answer.headers["location"]) == (201, "/api/v1/pipelines/fresh")
    assert PipelineStatus.model_validate(answer.json()).state == "starting"
    assert platform.arguments["submit"] == body | {"inputs": ["decode=b.mp4"]}
    Submission.model_validate(platform.arguments["submit"])
    more = {"name": "other", "frames": 3, "realtime": True}
    assert api.post("/api/v1/pipelines", json={"spec": "x", "inputs": ["b.mp4"], **more}).status_code == 201
    assert platform.arguments["submit"] == {"spec": "x", "inputs": ["b.mp4"], **more}
    assert api.post("/api/v1/pipelines", json={"spec": "x", "inputs": {"": "b.mp4"}}).status_code == 201
    assert Submission.model_validate(platform.arguments["submit"]) == Submission(spec="x", inputs=("b.mp4",))


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        ("taken", 409, {"kind": "NameTaken", "message": "pipeline taken is running", "mend": "remove it first"}),
        ("wrong", 400, {"kind": "BadSpec", "file": "a.yaml", "line": 7, "mend": "did you mean width?"}),
    ],
)
def test_what_the_platform_refuses(api: Asker, spec: str, status: int, expected: dict[str, Any]) -> None:
    answer = api.post("/api/v1/pipelines", json={"spec": spec, "file": "a.yaml"})
    assert answer.status_code == status
    assert expected.items() <= answer.json()["error"].items()


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"file": "a.yaml"}, "spec"),
        ({"spec": ""}, "spec"),
        ({"spec": "x", "folder": "relative"}, "folder"),
        ({"spec": "x", "fil": "a.yaml"}, "fil"),
        ({"spec": 3}, "spec"),
        ([], "body"),
    ],
)
def test_malformed_bodies(api: Asker, platform: FakePlatform, body: Any, parameter: str) -> None:
    answer = api.post("/api/v1/pipelines", json=body)
    assert (answer.status_code, answer.json()["error"]["parameter"]) == (422, parameter)
    assert "submit" not in platform.asked


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b"[" * 200_000, b'{"spec": NaN}'])
def test_bodies_that_are_no_json(api: Asker, body: bytes) -> None:
    answer = api.post("/api/v1/pipelines", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    Problem.model_validate(answer.json())


def test_remove(api: Asker, platform: FakePlatform) -> None:
    answer = api.delete("/api/v1/pipelines/abr-ladder")
    assert (answer.status_code, answer.json()["state"]) == (200, "draining")
    assert platform.arguments["remove"] == {"name": "abr-ladder"}


def test_a_change_shows_at_once(api: Asker, platform: FakePlatform) -> None:
    before = api.get("/api/v1/pipelines/abr-ladder").json()["state"]
    platform.document["pipelines"][0]["state"] = "draining"
    api.delete("/api/v1/pipelines/abr-ladder")
    assert (before, api.get("/api/v1/pipelines/abr-ladder").json()["state"]) == ("running", "draining")


def test_a_platform_that_is_gone_and_back(api: Asker, platform: FakePlatform) -> None:
    platform.stop()
    for method, path in (
        ("GET", "/api/v1/pipelines"),
        ("GET", "/api/v1/topology"),
        ("GET", "/api/v1/topology/cost"),
        ("GET", "/metrics"),
        ("DELETE", "/api/v1/pipelines/abr-ladder"),
    ):
        answer = api.request(method, path)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (503, "Gone")
        assert "observatory up" in answer.json()["error"]["mend"]
    gone = api.get("/api/v1/health")
    assert (gone.status_code, Health.model_validate(gone.json()).status) == (503, "platform gone")
    assert api.get("/api/v1/streams").status_code == 200  # the store is read all the same
    platform.start()
    assert api.get("/api/v1/snapshot").status_code == 200
    assert api.get("/metrics").status_code == 200


def test_metrics_in_the_format_that_is_asked_for(api: Asker) -> None:
    classic = api.get("/metrics", headers={"accept": "text/plain"})
    assert (classic.text, classic.headers["content-type"]) == ("up 1.0\n", "text/plain; version=0.0.4; charset=utf-8")
    modern = api.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert modern.text.endswith("# EOF\n")
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    for coding in ("gzip", "identity"):
        one = api.get("/metrics", headers={"accept-encoding": coding})
        assert (one.text, one.headers.get("content-encoding", "identity")) == ("up 1.0\n", coding)
        assert "Accept-Encoding" in one.headers["vary"]


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/html,application/xhtml+xml,*/*;q=0.8", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;q=0", False),
        ("text/plain;version=0.0.4;q=0.5,application/openmetrics-text;q=0.3", False),
        ("application/openmetrics-text;q=nonsense", False),
        # Prometheus 2.42 and 3.x
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
            "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
            True,
        ),
    ],
)
def test_accept(accept: str, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics


# Topology


def test_the_topology_is_the_commands_document(
    api: Asker, platform: FakePlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    from observatory.topology.load import load_topology

    platform.topology = load_topology("two-socket-8gpu")
    assert run_cli(["topology", "show", "--topology", "two-socket-8gpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    answer = api.get("/api/v1/topology")
    assert answer.json() == document
    assert answer.headers["content-encoding"] == "gzip"
    TopologyDocument.model_validate(answer.json())
    assert api.get("/api/v1/topology", headers={"accept-encoding": "identity"}).json() == document


def test_costs_between_devices(api: Asker) -> None:
    cost = Cost.model_validate(api.get("/api/v1/topology/cost").json())
    assert (cost.level, cost.message_bytes, cost.labels) == ("devices", 1048576, ["n0/gpu0", "n0/cpu0"])
    across = 1e-6 + 1048576 / 50e9
    assert cost.seconds == [[0.0, pytest.approx(across)], [pytest.approx(across), 0.0]]
    assert not cost.truncated


def test_costs_between_nodes_are_those_between_their_processors(api: Asker, platform: FakePlatform) -> None:
    platform.topology = cluster(3, 2)
    cost = Cost.model_validate(api.get("/api/v1/topology/cost?level=nodes").json())
    assert (cost.level, cost.labels) == ("nodes", ["n0", "n1", "n2"])
    hop = 1048576 / 10e9
    # They are joined in a row, and a machine in between passes nothing on.
    assert cost.seconds[0] == [0.0, pytest.approx(2e-6 + hop), None]
    assert cost.seconds[1] == [pytest.approx(2e-6 + hop), 0.0, pytest.approx(2e-6 + hop)]
    one = Cost.model_validate(api.get("/api/v1/topology/cost?node=n1").json())
    assert (one.level, one.node, one.labels) == ("devices", "n1", ["n1/gpu0", "n1/gpu1", "n1/cpu0"])
    answer = api.get("/api/v1/topology/cost?node=n7")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (404, "NoSuchVertex")


def test_never_more_than_512_rows(api: Asker, platform: FakePlatform) -> None:
    platform.topology = cluster(1, 0).model_copy(
        update={
            "links": (),
            "devices": tuple(d.model_copy(update={"id": f"n0/gpu{n}"}) for n, d in enumerate(cluster(1, 600).devices)),
        }
    )
    whole = Cost.model_validate(api.get("/api/v1/topology/cost?level=devices").json())
    assert (len(whole.labels), len(whole.seconds), len(whole.seconds[0])) == (512, 512, 512)
    assert whole.truncated
    assert whole.seconds[0][:2] == [0.0, None]  # no link: unknown, not 0
    assert Cost.model_validate(api.get("/api/v1/topology/cost").json()).level == "nodes"


def test_a_changed_topology_is_seen(api: Asker, platform: FakePlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("observatory.app.web.backend.TOPOLOGY_SECONDS", 0.0)
    before = api.get("/api/v1/topology/cost").json()["seconds"][0][1]
    platform.topology = pair(25e9)
    assert api.get("/api/v1/topology/cost").json()["seconds"][0][1] == pytest.approx(1e-6 + 1048576 / 25e9)
    assert before == pytest.approx(1e-6 + 1048576 / 50e9)


# What is not there


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v1", "/api/v1/snapshots", "/api/v2/snapshot", "/api/v1/../x"])
def test_unknown_paths_answer_in_json(api: Asker, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = api.request(method, path)
        assert (answer.status_code, answer.json()["error"]["kind"]) == (404, "NotFound")


def test_a_method_that_is_not_there(api: Asker) -> None:
    answer = api.put("/api/v1/pipelines")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert answer.json()["error"]["kind"] == "MethodNotAllowed"


def test_a_plain_request_to_the_feed(api: Asker) -> None:
    answer = api.get("/api/v1/live")
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")


def test_a_platform_of_another_version(api: Asker, platform: FakePlatform) -> None:
    del platform.document["platform"]["pid"]
    for path in ("snapshot", "pipelines"):
        answer = api.get(f"/api/v1/{path}")
        assert (answer.status_code, answer.json()["error"]["kind"]) == (503, "BadAnswer")
        assert "platform.pid: Field required" in answer.json()["error"]["message"]
    assert api.get("/api/v1/health").status_code == 503


def test_a_defect_is_one_clear_answer(api: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(FrameReading, "streams", fail)
    answer = api.get("/api/v1/streams")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (500, "InternalError")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "Traceback" not in answer.text


def test_pages_that_need_no_internet(api: Asker, tmp_path: Path) -> None:
    start, docs = api.get("/"), api.get("/api/v1/docs")
    assert 'href="/api/v1/docs"' in start.text
    assert 'href="/metrics"' in start.text
    assert "/api/v1/frames/find" in docs.text
    for page in (start, docs):
        assert page.status_code == 200
        assert "http://" not in page.text.replace("http://127.0.0.1", "")
        assert "https://" not in page.text
        assert "<script" not in page.text
