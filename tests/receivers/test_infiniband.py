"""RDMA ports: rates, words of four bytes, full counters, and the names of five drivers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from observatory.receivers.errors import ReceiverUnavailable
from observatory.receivers.infiniband import Infiniband
from tests.receivers.looking import look
from tests.receivers.rdma_trees import add_port, recorded_cards
from tests.topology.sysfs_trees import write


def test_a_machine_of_eight_cards(tmp_path: Path) -> None:
    """Read off by hand from the record: mlx5_0 runs at 400 Gb/s on 4 lanes."""
    recorded_cards("sysfs-ib/gpud_sys-class-infiniband-h100.tar.gz", tmp_path)
    (told,) = look(Infiniband, tmp_path)
    assert told["mlx5_0/1", "hw.network.up"] == 1.0
    assert told["mlx5_0/1", "hw.network.bandwidth.limit"] == 400e9 / 8
    assert told["mlx5_0/1", "link.width"] == 4.0
    assert told["mlx5_0/1", "hw.network.io transmit"] == 230442669431839 * 4
    assert told["mlx5_0/1", "hw.network.io receive"] == 230539874932483 * 4
    assert told["mlx5_0/1", "hw.network.packets receive"] == 317548853677
    assert told["mlx5_0/1", "link.errors buffer_overrun"] == 15.0
    assert told["mlx5_0/1", "link.errors receive"] == 14.0
    assert told["mlx5_0/1", "link.errors packet_sequence"] == 0.0
    assert len({key for key, metric in told if metric == "hw.network.up"}) == 9


def test_cards_of_other_makers(tmp_path: Path) -> None:
    recorded_cards("sysfs-ib/procfs_fixtures.ttar", tmp_path)
    (told,) = look(Infiniband, tmp_path)
    assert told["hfi1_0/1", "hw.network.io receive"] == 345091702026 * 4
    assert told["hfi1_0/1", "hw.network.bandwidth.limit"] == 100e9 / 8


def test_a_card_without_a_performance_agent_and_one_with_counters_of_64_bits(tmp_path: Path) -> None:
    recorded_cards("node-exporter/sys.ttar", tmp_path)
    (told,) = look(Infiniband, tmp_path)
    assert told["i40iw0/1", "hw.network.io receive"] is None  # N/A (no PMA)
    assert told["i40iw0/1", "link.errors symbol"] is None
    assert told["i40iw0/1", "hw.network.bandwidth.limit"] == 8e9 / 8  # 10 Gb/sec (4X): SDR, 8 bits in 10
    assert told["mlx4_0/1", "hw.network.io receive"] == 4631917 * 4
    assert told["mlx4_0/1", "hw.network.bandwidth.limit"] == 32e9 / 8  # QDR: 8 bits in 10


@pytest.mark.parametrize(
    ("driver", "names"),
    [
        ("mlx5", ["packet_seq_err", "out_of_sequence", "local_ack_timeout_err", "rnr_nak_retry_err"]),
        ("bnxt_re", ["seq_err_naks_rcvd", "oos_drop_count", "to_retransmits", "rnr_naks_rcvd"]),
        ("mlx4", ["sq_num_oos", "rq_num_oos", "sq_num_to", "sq_num_rnr"]),
    ],
)
def test_drivers_call_the_same_errors_differently(tmp_path: Path, driver: str, names: list[str]) -> None:
    add_port(tmp_path, f"{driver}_0", hw_counters={name: str(n) for n, name in enumerate(names, 1)})
    (told,) = look(Infiniband, tmp_path)
    kinds = ("packet_sequence", "out_of_sequence", "local_ack_timeout", "rnr_nak_retry")
    assert [told[f"{driver}_0/1", f"link.errors {kind}"] for kind in kinds] == [1.0, 2.0, 3.0, 4.0]


def test_soft_roce_and_intel(tmp_path: Path) -> None:
    add_port(
        tmp_path,
        "rxe0",
        link_layer="Ethernet",
        rate="2.5 Gb/sec (1X SDR)",
        hw_counters={"rcvd_seq_err": "5", "out_of_seq_request": "6", "link_downed": "1", "sent_pkts": "9"},
    )
    add_port(
        tmp_path,
        "irdma0",
        link_layer="Ethernet",
        hw_counters={"ip4InOctets": "100", "ip6InOctets": "11", "RetransSegs": "3", "cnpHandled": "8"},
    )
    (told,) = look(Infiniband, tmp_path)
    rxe = {metric: value for (key, metric), value in told.items() if key == "rxe0/1"}
    assert rxe == {
        "hw.network.up": 1.0,
        "hw.network.bandwidth.limit": 2.5e9 / 8,  # Ethernet's: the word in brackets means nothing
        "link.errors packet_sequence": 5.0,
        "link.errors out_of_sequence": 6.0,
        "link.errors link_downed": 1.0,
        "hw.network.packets transmit": 9.0,
    }
    assert told["irdma0/1", "hw.network.io receive"] == 111.0
    assert told["irdma0/1", "link.errors retransmission"] == 3.0
    assert not any("cnp" in metric for _, metric in told)


def test_a_full_counter_of_32_bits_tells_nothing(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx4_0", counters={"port_xmit_data": "4294967295", "port_rcv_data": "4294967294"})
    (told,) = look(Infiniband, tmp_path)
    assert told["mlx4_0/1", "hw.network.io transmit"] is None
    assert told["mlx4_0/1", "hw.network.io receive"] == 4294967294 * 4


def test_one_error_that_is_counted_in_two_places_is_told_once(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", counters={"link_downed": "2"}, hw_counters={"link_downed": "2"})
    add_port(
        tmp_path, "mlx4_0", counters={"port_xmit_data": "4294967295"}, counters_ext={"port_xmit_data_64": "5000000000"}
    )
    (told,) = look(Infiniband, tmp_path)
    assert told["rxe0/1", "link.errors link_downed"] == 2.0
    assert told["mlx4_0/1", "hw.network.io transmit"] == 20e9


def test_a_port_that_goes_down_and_a_card_that_is_gone(tmp_path: Path) -> None:
    port = add_port(tmp_path, "mlx5_0")
    add_port(tmp_path, "mlx5_1")

    def down() -> None:
        write(port / "state", "1: DOWN")
        write(port / "rate", "0 Gb/sec (4X)")

    def gone() -> None:
        (tmp_path / "sys/class/infiniband/mlx5_0").unlink()
        shutil.rmtree(port.parents[1])

    def rescan(receiver: object) -> None:
        assert isinstance(receiver, Infiniband)
        receiver._watch._due = 0.0

    first, second, third = look(Infiniband, tmp_path, down, gone, again=rescan)
    assert (first["mlx5_0/1", "hw.network.up"], second["mlx5_0/1", "hw.network.up"]) == (1.0, 0.0)
    assert second["mlx5_0/1", "hw.network.bandwidth.limit"] is None
    assert {metric: value for (key, metric), value in third.items() if key == "mlx5_0/1"} == {"hw.network.up": 0.0}
    assert third["mlx5_1/1", "hw.network.up"] == 1.0


def test_a_machine_without_cards_says_why(tmp_path: Path) -> None:
    with pytest.raises(ReceiverUnavailable, match="shows no RDMA port"):
        look(Infiniband, tmp_path)
