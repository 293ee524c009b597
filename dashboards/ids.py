"""The ids of components that callbacks and live updates name."""

from __future__ import annotations

from typing import Final

URL: Final = "url"
PAGE: Final = "page"
LIVE: Final = "live"
"""An unseen element: its `data-number` says that there is a new batch."""
BATCH: Final = "batch"
"""A store that every live message sets: what is new for the page shown, and what is wrong if anything is."""

# Overview
PLATFORM: Final = "platform"
PLATFORM_ALERTS: Final = "platform-alerts"
PIPELINES: Final = "pipelines"
DETAIL: Final = "detail"
DETAIL_HEAD: Final = "detail-head"
DETAIL_NAME: Final = "detail-name"
RATE_FIGURE: Final = "rate-figure"
LATENCY_FIGURE: Final = "latency-figure"
QUEUE_FIGURE: Final = "queue-figure"
STREAMS_TABLE: Final = "streams-table"
WORKERS_TABLE: Final = "workers-table"

# Submit and remove
SUBMIT_OPEN: Final = "submit-open"
SUBMIT_DIALOG: Final = "submit-dialog"
SUBMIT_SPEC: Final = "submit-spec"
SUBMIT_UPLOAD: Final = "submit-upload"
SUBMIT_FILE: Final = "submit-file"
SUBMIT_INPUTS: Final = "submit-inputs"
SUBMIT_FOLDER: Final = "submit-folder"
SUBMIT_GO: Final = "submit-go"
SUBMIT_ANSWER: Final = "submit-answer"
REMOVE_OPEN: Final = "remove-open"
REMOVE_DIALOG: Final = "remove-dialog"
REMOVE_QUESTION: Final = "remove-question"
REMOVE_GO: Final = "remove-go"
REMOVE_STAY: Final = "remove-stay"
REMOVE_ANSWER: Final = "remove-answer"

# Topology
TOPOLOGY_NODE: Final = "topology-node"
TOPOLOGY_GRAPH: Final = "topology-graph"
TOPOLOGY_VERSION: Final = "topology-version"
"""A store that says of which state of the links the page is to be; it is drawn again when that changes."""
TOPOLOGY_COST: Final = "topology-cost"
COST_FIGURE: Final = "cost-figure"
PHYSICAL_FIGURE: Final = "physical-figure"
COST_WORDS: Final = "cost-words"
COST_SCALE: Final = "cost-scale"

# Incidents
INCIDENTS_STRIP: Final = "incidents-strip"
INCIDENTS_OPEN: Final = "incidents-open"
INCIDENTS_OVER: Final = "incidents-over"
RECEIVERS: Final = "receivers"

# Frames
FIND_STREAM: Final = "find-stream"
FIND_PTS: Final = "find-pts"
FIND_TIME_BASE: Final = "find-time-base"
FIND_EPOCH: Final = "find-epoch"
FIND_GO: Final = "find-go"
FRAME: Final = "frame"
FRAME_COPY: Final = "frame-copy"
WATERFALL: Final = "waterfall"
FRAMES_WHICH: Final = "frames-which"
FRAMES_REFRESH: Final = "frames-refresh"
FRAMES_LIST: Final = "frames-list"
FRAMES_GRID: Final = "frames-grid"

SHOWN: Final = "shown"
"""A store that says which page the browser shows, and of which shape: live updates go by it."""
BADGE: Final = "live-badge"
