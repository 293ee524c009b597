"""Prometheus metrics of a platform: what `/metrics` serves."""
