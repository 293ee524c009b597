"""The other process of test_ten_bit.py: `python large_frame_peer.py SOCKET_FD SLOT_BYTES`, prints what it reads."""

from __future__ import annotations

import hashlib
import os
import socket
import sys

from dataplane._ring import RingConsumer, RingEnded, die_with_parent


def main() -> None:
    die_with_parent(os.getppid())
    channel = socket.socket(fileno=int(sys.argv[1]))
    consumer = RingConsumer()
    socket.send_fds(channel, [b"p"], [consumer.page_fd])
    _, fds, _, _ = socket.recv_fds(channel, 1, 2)
    consumer.attach(fds[0], fds[1:], [int(sys.argv[2])])
    try:
        while True:
            lease = consumer.take(60.0)
            assert lease is not None
            with lease:
                frame = lease.array
                print(lease.descriptor.source_index, frame.size, hashlib.sha256(frame.data).hexdigest(), flush=True)
                del frame
    except RingEnded:
        return


main()
