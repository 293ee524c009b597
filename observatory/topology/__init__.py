"""The physical graph: importers, graph, paths, domains and the cost matrix."""
