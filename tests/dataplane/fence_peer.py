"""The signalling process of the tests in test_fences.py: `python fence_peer.py SOCKET_FD`.

It makes a fence, sends its handle, and obeys: `signal VALUE`, `close`, `run` (signal for ever), `sleep`.
"""

from __future__ import annotations

import socket
import sys
import time

from dataplane.fences import Timeline


def obey(channel: socket.socket) -> None:
    timeline = Timeline()
    socket.send_fds(channel, [b"f"], timeline.handle())
    for line in channel.makefile():
        word, *arguments = line.split()
        if word == "signal":
            timeline.signal(int(arguments[0]))
        elif word == "close":
            timeline.close()
        elif word == "run":
            while True:
                timeline.signal(timeline.value + 1)
        else:
            time.sleep(600)


if __name__ == "__main__":
    obey(socket.socket(fileno=int(sys.argv[1])))
