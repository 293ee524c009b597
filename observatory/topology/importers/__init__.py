"""Importers: one module per source of a topology."""
