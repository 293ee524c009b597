"""Decides: where each operator of a pipeline runs, and when to move it."""
