"""Breaks: faults that prove that they landed and that they were undone."""
