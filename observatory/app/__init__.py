"""The composition root: command line, HTTP API, platform. It imports everything; nothing imports it."""
