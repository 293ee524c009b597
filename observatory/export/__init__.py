"""Telemetry for the tools of others: OTLP to an OpenTelemetry collector."""
