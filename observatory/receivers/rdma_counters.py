"""Counters of RDMA ports: what each driver calls them, and what they are to us.

Every driver may use names of its own below `hw_counters`; those below `counters` are InfiniBand's. Sources, Linux 6.12:

    counters, counters_ext   drivers/infiniband/core/sysfs.c (PORT_PMA_ATTR); InfiniBand Architecture Specification
                             vol. 1, 16.1.3 (PortCounters, PortCountersExtended)
    mlx5_ib                  drivers/infiniband/hw/mlx5/counters.c
    bnxt_re                  drivers/infiniband/hw/bnxt_re/hw_counters.c
    irdma                    drivers/infiniband/hw/irdma/verbs.c (newer kernels drop the names' `iw` and `tcp`)
    rdma_rxe                 drivers/infiniband/sw/rxe/rxe_hw_counters.c
    hfi1                     drivers/infiniband/hw/hfi1/verbs.c, mad.c: `counters` only, in words
    mlx4_ib                  drivers/infiniband/hw/mlx4/main.c (diag_basic)
    efa                      drivers/infiniband/hw/efa/efa_verbs.c

What is no error, byte or packet is left out: requests by kind, congestion marks, objects in use, `port_xmit_wait`.
"""

from __future__ import annotations

from dataclasses import dataclass

WORD_BYTES = 4  # port_xmit_data and port_rcv_data count words of four bytes, on every link layer


@dataclass(frozen=True, slots=True)
class Counter:
    """What a file counts: `unit` is what one of it is in the metric's unit.

    `stuck_at`: an old counter of 32 bits stays there when it is full, and tells nothing any more.
    """

    metric: str
    attributes: dict[str, str]
    unit: float = 1.0
    stuck_at: float | None = None


def _error(kind: str) -> Counter:
    return Counter("link.errors", {"error.type": kind})


def _io(direction: str, unit: float = 1.0, stuck_at: float | None = None) -> Counter:
    return Counter("hw.network.io", {"network.io.direction": direction}, unit, stuck_at)


def _packets(direction: str, stuck_at: float | None = None) -> Counter:
    return Counter("hw.network.packets", {"network.io.direction": direction}, 1.0, stuck_at)


_FULL = float((1 << 32) - 1)

PORT_COUNTERS: dict[str, Counter] = {
    "port_xmit_data": _io("transmit", WORD_BYTES, _FULL),
    "port_rcv_data": _io("receive", WORD_BYTES, _FULL),
    "port_xmit_packets": _packets("transmit", _FULL),
    "port_rcv_packets": _packets("receive", _FULL),
    "symbol_error": _error("symbol"),
    "link_error_recovery": _error("link_recovery"),
    "link_downed": _error("link_downed"),
    "port_rcv_errors": _error("receive"),
    "port_rcv_remote_physical_errors": _error("remote_physical"),
    "port_rcv_switch_relay_errors": _error("switch_relay"),
    "port_rcv_constraint_errors": _error("receive_constraint"),
    "port_xmit_constraint_errors": _error("transmit_constraint"),
    "port_xmit_discards": _error("transmit_discard"),
    "port_rcv_discards": _error("receive_discard"),
    "local_link_integrity_errors": _error("local_link_integrity"),
    "excessive_buffer_overrun_errors": _error("buffer_overrun"),
    "VL15_dropped": _error("vl15_dropped"),
}
"""Files of `counters`. Old kernels and mlx4's driver have some with `_64` after the name in `counters_ext`."""

HARDWARE_COUNTERS: dict[str, Counter] = {
    # mlx5; mlx4 has the names rq_num_* and sq_num_*
    "packet_seq_err": _error("packet_sequence"),
    "out_of_sequence": _error("out_of_sequence"),
    "implied_nak_seq_err": _error("implied_nak_sequence"),
    "local_ack_timeout_err": _error("local_ack_timeout"),
    "duplicate_request": _error("duplicate_request"),
    "rnr_nak_retry_err": _error("rnr_nak_retry"),
    "out_of_buffer": _error("out_of_buffer"),
    "rx_icrc_encapsulated": _error("icrc"),
    "roce_adp_retrans": _error("adaptive_retransmission"),
    "roce_adp_retrans_to": _error("adaptive_retransmission_timeout"),
    "req_cqe_error": _error("requester_completion"),
    "resp_cqe_error": _error("responder_completion"),
    "req_cqe_flush_error": _error("requester_flush"),
    "resp_cqe_flush_error": _error("responder_flush"),
    "req_remote_access_errors": _error("requester_remote_access"),
    "resp_remote_access_errors": _error("responder_remote_access"),
    "req_remote_invalid_request": _error("requester_invalid_request"),
    "resp_local_length_error": _error("responder_length"),
    "req_transport_retries_exceeded": _error("retry_exceeded"),
    "req_rnr_retries_exceeded": _error("rnr_retry_exceeded"),
    "rq_num_dup": _error("duplicate_request"),
    "rq_num_oos": _error("out_of_sequence"),
    "sq_num_oos": _error("packet_sequence"),
    "sq_num_to": _error("local_ack_timeout"),
    "sq_num_rnr": _error("rnr_nak_retry"),
    "sq_num_tree": _error("retry_exceeded"),
    "sq_num_rree": _error("rnr_retry_exceeded"),
    # bnxt_re
    "seq_err_naks_rcvd": _error("packet_sequence"),
    "oos_drop_count": _error("out_of_sequence"),
    "to_retransmits": _error("local_ack_timeout"),
    "max_retry_exceeded": _error("retry_exceeded"),
    "rnr_naks_rcvd": _error("rnr_nak_retry"),
    "dup_req": _error("duplicate_request"),
    "missing_resp": _error("missing_response"),
    "rx_out_of_buffer": _error("out_of_buffer"),
    "rx_roce_errors": _error("receive"),
    "rx_roce_discards": _error("receive_discard"),
    "unrecoverable_err": _error("unrecoverable"),
    "bad_resp_err": _error("bad_response"),
    "res_tx_pci_err": _error("pci_transmit"),
    "res_rx_pci_err": _error("pci_receive"),
    "rx_pkts": _packets("receive"),
    "tx_pkts": _packets("transmit"),
    "rx_bytes": _io("receive"),
    "tx_bytes": _io("transmit"),
    # rdma_rxe
    "rcvd_seq_err": _error("packet_sequence"),
    "out_of_seq_request": _error("out_of_sequence"),
    "rcvd_rnr_err": _error("rnr_nak_retry"),
    "retry_exceeded_err": _error("retry_exceeded"),
    "retry_rnr_exceeded_err": _error("rnr_retry_exceeded"),
    "completer_retry_err": _error("retransmission"),
    "send_err": _error("transmit"),
    "link_downed": _error("link_downed"),
    "sent_pkts": _packets("transmit"),
    "rcvd_pkts": _packets("receive"),
    # irdma, with its older names
    "RetransSegs": _error("retransmission"),
    "tcpRetransSegs": _error("retransmission"),
    "InProtoErrors": _error("protocol"),
    "tcpInProtoErrors": _error("protocol"),
    "InOptErrors": _error("header_option"),
    "tcpInOptErrors": _error("header_option"),
    "rxVlanErrors": _error("vlan"),
    "CRC_errors": _error("icrc"),
    "RNR received": _error("rnr_nak_retry"),
    # efa
    "rx_drops": _error("receive_discard"),
    "retrans_pkts": _error("retransmission"),
    "retrans_timeout_events": _error("local_ack_timeout"),
    "unresponsive_remote_events": _error("missing_response"),
    "impaired_remote_conn_events": _error("impaired_connection"),
}
"""Files of `hw_counters`, all drivers together: where two use one name it means the same."""

SUMMED_COUNTERS: tuple[tuple[Counter, tuple[str, ...]], ...] = (
    (_io("receive"), ("ip4InOctets", "ip6InOctets")),
    (_io("transmit"), ("ip4OutOctets", "ip6OutOctets")),
    (_packets("receive"), ("ip4InPkts", "ip6InPkts")),
    (_packets("transmit"), ("ip4OutPkts", "ip6OutPkts")),
    (_error("receive_discard"), ("ip4InDiscards", "ip6InDiscards")),
    (_error("truncated"), ("ip4InTruncatedPkts", "ip6InTruncatedPkts")),
    (_error("no_route"), ("ip4OutNoRoutes", "ip6OutNoRoutes")),
)
"""What irdma counts apart for both versions of IP."""

ERROR_TYPES: tuple[str, ...] = tuple(
    sorted(
        {
            counter.attributes["error.type"]
            for counter in (
                *PORT_COUNTERS.values(),
                *HARDWARE_COUNTERS.values(),
                *(counter for counter, _ in SUMMED_COUNTERS),
            )
            if "error.type" in counter.attributes
        }
    )
)
"""The values of `error.type` of an RDMA port."""
