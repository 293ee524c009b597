"""Errors of the receivers.

ObservatoryError
└── ReceiverError
    ├── ReceiverUnavailable  this machine has no such source, or may not look at it: not tried again soon
    └── ReceiverFailed       a source that answered before does not answer, or talks nonsense: tried again
"""

from __future__ import annotations

from observatory.errors import ObservatoryError


class ReceiverError(ObservatoryError):
    """Base of everything that receivers raise on purpose."""


class ReceiverUnavailable(ReceiverError):
    """The source is not there, or may not be read."""


class ReceiverFailed(ReceiverError):
    """The source does not answer any more."""
