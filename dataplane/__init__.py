"""Moves: shared-memory rings, frame pools, links and the workers that use them."""
