"""Incidents: what is wrong with the hardware, found in what the receivers see; `watch` is where to begin."""
