"""Exporters that are there already: their format, their names, their blanks, and how they fail."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from observatory.model.observation import HardwareEvent, Observation, Seen
from observatory.receivers.endpoint import Endpoint, known
from observatory.receivers.errors import ReceiverUnavailable
from observatory.receivers.exporter_names import SERIES, is_of_software
from observatory.receivers.exposition_text import samples
from observatory.receivers.protocol import ReceiverContext
from observatory.receivers.runner import Limits, Runner, Settings
from observatory.receivers.status import ReceiverState
from tests.receivers.looking import Told, told
from tests.receivers.waiting import wait_until

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
UUID = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"


class Every:
    def __contains__(self, name: object) -> bool:
        return True


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None], port: int = 0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def text(*texts: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answers with these texts one after the other, then with the last one again and again."""
    left = list(texts)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        body = (left.pop(0) if len(left) > 1 else left[0]).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def scrape(url: str, *, times: int = 1, node_label: str | None = None) -> list[list[Seen]]:
    async def run() -> list[list[Seen]]:
        receiver = Endpoint()
        options = {"url": url} | ({} if node_label is None else {"node_label": node_label})
        await receiver.open(ReceiverContext("n0", options=options))
        try:
            return [list(await receiver.poll()) for _ in range(times)]
        finally:
            await receiver.close()

    return asyncio.run(run())


def scraped(body: str) -> Told:
    with serving(text(body)) as url:
        return told(scrape(url)[0], "endpoint")


def test_gpus_of_dcgm_exporter() -> None:
    labels = f'gpu="0",UUID="{UUID}",pci_bus_id="00000000:3B:00.0",Hostname="gpu7"'
    found = scraped(
        f"DCGM_FI_DEV_SM_CLOCK{{{labels}}} 1980\n"
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} 5000\n"
        f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} 37\n"
        f"DCGM_FI_DEV_FB_USED{{{labels}}} 2\n"
        f"DCGM_FI_DEV_PCIE_TX_THROUGHPUT{{{labels}}} 7\n"
        f"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{{labels}}} 68\n"
        f"DCGM_FI_DEV_MEMORY_TEMP{{{labels}}} 9223372036854775794\n"
    )
    key = "0000:3b:00.0"
    assert found[key, "gpu.clock sm"] == 1980e6
    assert found[key, "hw.energy"] == 5.0
    assert found[key, "hw.gpu.utilization general"] == 0.37
    assert found[key, "hw.gpu.memory.usage"] == 2 * 1024 * 1024
    assert found[key, "link.throughput transmit"] == 7000.0
    assert found[key, "hw.temperature memory"] is None
    reasons = {metric.removeprefix("gpu.throttled "): value for (_, metric), value in found.items() if "thr" in metric}
    del reasons["link.throughput transmit"]
    assert {reason for reason, value in reasons.items() if value} == {"sw_power_cap", "hw_thermal"}  # 4 + 64


def test_older_names_and_gpus_without_a_bus_id() -> None:
    found = scraped(
        f'dcgm_sm_clock{{gpu="0",uuid="{UUID}"}} 139\ndcgm_gpu_utilization{{gpu="0",uuid="{UUID}"}} 50\n'
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="1",UUID="{UUID}",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"}} 10\n'
        'DCGM_FI_DEV_SM_CLOCK{gpu="0"} 1\n'  # of whom?
    )
    assert found == {
        (UUID, "gpu.clock sm"): 139e6,
        (UUID, "hw.gpu.utilization general"): 0.5,
        (f"{UUID}/7", "hw.gpu.utilization general"): 0.1,
    }


def test_what_dcgm_exporter_published() -> None:
    path = DATA / "dcgm/readme_metrics_9.txt"
    if not path.exists():
        pytest.skip("../shared/data is not there")
    found = scraped(path.read_text())  # with the commands of the page before it: no samples
    assert found == {
        (UUID, "gpu.clock sm"): 139e6,
        (UUID, "gpu.clock memory"): 405e6,
        (UUID, "hw.temperature memory"): None,
    }


def test_what_node_exporter_published() -> None:
    """Values as they stand in the file."""
    path = DATA / "node-exporter/e2e-output.txt"
    if not path.exists():
        pytest.skip("../shared/data is not there")
    found = scraped(path.read_text())
    assert found["mlx4_0/1", "hw.network.io receive"] == 1.8527668e07
    assert found["mlx4_0/1", "link.errors transmit_discard"] == 5.0
    assert found["i40iw0/1", "hw.network.bandwidth.limit"] == 1.25e09
    assert found["i40iw0/1", "hw.network.up"] == 1.0
    assert found["bond0", "hw.network.up"] == 1.0
    assert found["eth0", "hw.network.bandwidth.limit"] == 1.25e08
    assert found["0000:00:02.1", "link.width"] == 4.0
    assert found["0000:00:02.1", "link.speed"] == 8e9
    assert found["0", "numa.allocations miss"] == 1.2624528e07
    assert found["mc0", "hw.errors uncorrected"] == 5.0
    assert found["", "node.stalled io full"] == 159.229614


def test_an_xid_is_told_when_it_changes() -> None:
    line = f'DCGM_FI_DEV_XID_ERRORS{{UUID="{UUID}"}} '
    with serving(text(f"{line}31\n", f"{line}31\n", f"{line}79\n", f"{line}79\n")) as url:
        looks = scrape(url, times=3)
    events = [[seen.code for seen in look if isinstance(seen, HardwareEvent)] for look in looks]
    assert events == [[], ["79"], []]  # the first was asked for when it was opened


def test_an_endpoint_that_speaks_for_several_machines() -> None:
    body = 'node_network_carrier{device="eth0",instance="a"} 1\nnode_network_carrier{device="eth0",instance="b"} 0\n'
    with serving(text(body)) as url:
        (look,) = scrape(url, node_label="instance")
    assert {(s.subject.node, s.value) for s in look if isinstance(s, Observation)} == {("a", 1.0), ("b", 0.0)}


def test_two_endpoints() -> None:
    with serving(text('node_network_carrier{device="eth0"} 1\n')) as one, serving(text("node_network_up 1\n")) as other:
        (look,) = scrape(f"{one} {other}")
    assert len(look) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (9223372036854775792.0, None),
        (2147483632.0, None),
        (2147483634.0, None),
        (2147483631.0, 2147483631.0),
        (140737488355330.0, None),
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (0.0, 0.0),
    ],
)
def test_blanks_are_unknown(value: float, expected: float | None) -> None:
    assert known(value) == expected


def server_error(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(500)


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nnode_network_up 1\n")
    handler.close_connection = True


def elsewhere(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:1/")
    handler.end_headers()


@pytest.mark.parametrize("answer", [server_error, hangs_up, elsewhere])
def test_an_endpoint_that_fails_says_how(answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
    with serving(answer) as url, pytest.raises(ReceiverUnavailable, match=r"http://127\.0\.0\.1") as failure:
        scrape(url)
    assert failure.value.mend


def test_an_endpoint_that_does_not_answer_does_not_hide_the_other(caplog: pytest.LogCaptureFixture) -> None:
    with serving(text('node_network_carrier{device="eth0"} 1\n')) as url:
        first, second = scrape(f"http://127.0.0.1:1/metrics {url}", times=2)
    assert told(first, "endpoint") == told(second, "endpoint") == {("eth0", "hw.network.up"): 1.0}
    [record] = caplog.records  # once, not at each look
    assert "http://127.0.0.1:1/metrics" in record.getMessage()


def test_endpoints_are_asked_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=1.0)  # neither answers before the other one is asked

    def answer(handler: BaseHTTPRequestHandler) -> None:
        both.wait()
        text('node_network_carrier{device="eth0"} 1\n')(handler)

    with serving(answer) as one, serving(answer) as other:
        [seen] = scrape(f"{one} {other}")
    assert told(seen, "endpoint") == {("eth0", "hw.network.up"): 1.0}


def test_an_xid_that_comes_while_the_exporter_is_missed_is_told() -> None:
    sample = f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="{UUID}",pci_bus_id="00000000:3B:00.0"}}'
    with serving(text(f"{sample} 0\n", f"{sample} 0\n", f"{sample} 79\n")) as url:
        assert scrape(url) == [[]]
        [seen] = scrape(url)  # the receiver is made anew after a failure
    assert [(s.kind, s.code) for s in seen if isinstance(s, HardwareEvent)] == [("xid", "79")]


@pytest.mark.parametrize("name", ["docker0", "veth1a2b", "br-0123456789ab", "cni0", "lo", "virbr0", "tap0", "eth0.100"])
def test_interfaces_of_software_are_left_out(name: str) -> None:
    lines = "".join(
        f'{metric}{{device="{device}"}} 1\n'
        for device in (name, "enp1s0f0np0")
        for metric in ("node_network_carrier", "node_network_up", "node_network_receive_bytes_total")
    )
    assert {key for key, _ in scraped(lines)} == {"enp1s0f0np0"}


@pytest.mark.parametrize(
    "name", ["eth0", "eno1", "ens3f1", "enP1p1s0", "ib0", "bnxt0", "rdma0", "wlan0", "tenge1", "lan0"]
)
def test_names_of_hardware(name: str) -> None:
    assert not is_of_software(name)


@pytest.mark.parametrize("url", ["", "nonsense", "http://[", "http://127.0.0.1:1/metrics", "file:///etc/passwd"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ReceiverUnavailable):
        scrape(url)


def test_too_large_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("observatory.receivers.endpoint._LARGEST_ANSWER", 1000)
    with serving(text("# a comment\n" * 1000)) as url, pytest.raises(ReceiverUnavailable, match="more than"):
        scrape(url)


def test_an_exporter_that_ends_and_is_started_again() -> None:
    body = 'node_network_carrier{device="eth0"} 1\n'
    seen: list[float] = []
    limits = Limits(first_back_off_seconds=0.01, unavailable_seconds=0.05)
    with serving(text(body)) as url:
        runner = Runner(
            {"endpoint": Endpoint},
            "n0",
            lambda name, batch: seen.append(len(batch)),
            settings={"endpoint": Settings(period_seconds=0.02, options={"url": url}, limits=limits)},
        )
        runner.start()
        wait_until(lambda: len(seen) > 2, "it is scraped")
    try:
        wait_until(lambda: runner.statuses()[0].state is not ReceiverState.WORKING, "it is missed")
        assert runner.statuses()[0].stale
        before = len(seen)
        with serving(text(body), port=int(url.split(":")[2].split("/")[0])):
            wait_until(lambda: len(seen) > before + 2, "it is scraped again")
            assert runner.statuses()[0].state is ReceiverState.WORKING
    finally:
        assert runner.stop(20.0) == ()


# -- the format --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["node-exporter/e2e-output.txt", "node-exporter/e2e-64k-page-output.txt"])
def test_our_parser_reads_what_prometheus_client_reads(name: str) -> None:
    if not (DATA / name).exists():
        pytest.skip("../shared/data is not there")
    body = (DATA / name).read_text()
    ours = [(s.name, s.labels, repr(s.value)) for s in samples(body, Every())]
    theirs = [(s.name, s.labels, repr(float(s.value))) for f in text_string_to_metric_families(body) for s in f.samples]
    assert ours == theirs


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(max_size=8), max_size=3),
    st.floats(),
)
def test_labels_of_any_text(labels: dict[str, str], value: float) -> None:
    escaped = {k: v.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for k, v in labels.items()}
    line = "a_name{" + ",".join(f'{k}="{v}"' for k, v in escaped.items()) + f"}} {value!r}\n"
    (sample,) = samples(line, {"a_name"})
    assert sample.labels == labels
    assert repr(sample.value) == repr(value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a 1", 1.0),
        ("a{} 2", 2.0),
        ('a{b="c",} 3', 3.0),
        ('a { b = "c" } 4 1395066363000', 4.0),
        ('a_total{b="c"} 5 # {trace_id="x"} 0.5', None),
        ("a +Inf", math.inf),
        ("a", None),
        ("a{", None),
        ('a{b="c} 6', None),
        ("a{b=c} 7", None),
        ("a 1 2 3", None),
        ("a one", None),
    ],
)
def test_lines_of_every_form(line: str, expected: float | None) -> None:
    found = [sample.value for sample in samples(line, {"a"})]
    assert found == ([] if expected is None else [expected])


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet='ab{}=",\\ \n01#eE+-.', max_size=60))
def test_any_text(body: str) -> None:
    list(samples(body, Every()))


def test_every_series_is_of_a_metric_that_is_known() -> None:
    from observatory.model.hardware_metrics import METRICS

    assert {series.metric for series in SERIES.values()} <= set(METRICS)
