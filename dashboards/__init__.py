"""Shows: pages and figures over the HTTP API."""
