"""Readers of one part of sysfs each; `observatory.topology.importers.real` puts them together."""
