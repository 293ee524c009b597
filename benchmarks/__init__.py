"""Benchmarks: each compares with its peer side by side, in one run, on the same work."""
