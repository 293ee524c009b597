"""Measures: topology, telemetry, tracing and the records of every frame."""
