"""The other process of test_fabric.py: `python fabric_peer.py SOCKET_FD BYTES`; it transfers over way 0 when told."""

from __future__ import annotations

import json
import os
import socket
import sys
import time

from dataplane.links.emulated import open_fabric

channel = socket.socket(fileno=int(sys.argv[1]))
payload = int(sys.argv[2])
_said, fds, _flags, _address = socket.recv_fds(channel, 1, 2)
fabric = open_fabric(fds)
for number in fds:
    os.close(number)
assert fabric is not None
channel.send(b"ready")
start_ns = int(channel.recv(100))
time.sleep(max(0.0, start_ns - time.monotonic_ns()) / 1e9)
moved = fabric.transfer([[0]], payload, 120.0)
channel.send(json.dumps(moved).encode())
