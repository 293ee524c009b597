"""Receivers of hardware telemetry, one source a file; `protocol` says what one is, `runner` looks after them."""
