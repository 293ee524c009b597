"""`script/bench NAME [OPTION...]`: run a benchmark, write its results and the table in docs/performance.md."""

from __future__ import annotations

import argparse
import importlib
import sys

BENCHMARKS = {
    "pipeline": ("benchmarks.main_job", "observatory run against ffmpeg; cost of tracing; frames find at 10 M records"),
    "dataplane": ("benchmarks.dataplane", "the ring against iceoryx2 and others; attaching, kill -9, restarts, moves"),
    "incidents": ("benchmarks.incidents", "labelled recordings of real machines; cost and time of finding incidents"),
    "topology": ("benchmarks.topology", "costs of 10,000 devices, built and kept up to date; reading real files"),
    "metrics": ("benchmarks.metrics", "/metrics with 10,000 series beside prometheus-client; OTLP; eBPF sampling"),
    "live": ("benchmarks.live", "four live 1080p30 streams through observatory up for ten minutes"),
    "hardware": ("benchmarks.hardware", "a change of the emulated machine until the incident; what looking costs"),
    "machine": ("benchmarks.machine", "a change of the emulated machine until it is observed; cost of a poll of NVML"),
    "receivers": ("benchmarks.receivers", "a change at the source until the observation is delivered; cost of a poll"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/bench", description=__doc__, add_help=False)
    parser.add_argument("name", nargs="?", choices=BENCHMARKS)
    if not sys.argv[1:]:
        for name, (_, words) in BENCHMARKS.items():
            print(f"{name:12} {words}")
        return 0
    arguments, rest = parser.parse_known_args()
    module = importlib.import_module(BENCHMARKS[arguments.name][0])
    return int(module.main(rest))


if __name__ == "__main__":
    sys.exit(main())
