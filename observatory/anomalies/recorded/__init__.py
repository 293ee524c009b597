"""Readers of recorded files: logs, dumps and outputs of tools as what a receiver would have seen; `files` begins."""
