"""Detectors of single troubles: each is fed with what was seen and says what is bad, or good again."""
