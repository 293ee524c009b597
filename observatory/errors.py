"""Errors of the measuring part.

MediaObservatoryError
└── ObservatoryError
    ├── observatory.topology.errors.TopologyError
    ├── observatory.anomalies.errors.AnomalyError
    └── observatory.receivers.errors.ReceiverError
"""

from __future__ import annotations

from observatory.model.errors import MediaObservatoryError


class ObservatoryError(MediaObservatoryError):
    """Base of everything the measuring part raises on purpose."""
