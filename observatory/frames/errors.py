"""Errors of the frame store.

ObservatoryError
└── FrameStoreError
    ├── NoFrameStore           nothing was ever recorded under this state directory          (exit 1)
    ├── FrameStoreVersion      written by a version with another layout                      (exit 1)
    ├── FrameStoreDamaged      not a database, or a part of it is missing                    (exit 1)
    ├── FrameStoreFull         the disk takes no more; what was stored is still there        (exit 1)
    ├── NoSuchStream           no stream of that name, or no epoch of that number            (exit 2)
    └── NoSuchFrame            no frame has that PTS; carries the nearest that exist         (exit 1)
"""

from __future__ import annotations

from typing import Any

from observatory.errors import ObservatoryError
from observatory.model.errors import ExitCode


class FrameStoreError(ObservatoryError):
    """Base of everything that goes wrong with frame records."""


class NoFrameStore(FrameStoreError):
    """There is no frame store under the state directory."""


class FrameStoreVersion(FrameStoreError):
    """The store's layout is of another version."""


class FrameStoreDamaged(FrameStoreError):
    """The files are not a frame store, or not a whole one."""


class FrameStoreFull(FrameStoreError):
    """The disk is full, or fails. Whatever was committed before is intact."""


class NoSuchStream(FrameStoreError):
    """A stream name or an epoch that the store does not know."""

    exit_code = ExitCode.BAD_INPUT


class NoSuchFrame(FrameStoreError):
    """No frame answers to that PTS or source index.

    Args:
        message: what was asked for, in words.
        nearest: the frames that exist before and after it, each as {"pts", "time_base", "source_index"}.
        lost: what the table of lost frames says about it, as {"operator", "reason", ...}, if anything.
        not_kept: whether it may have been there until retention took it.
        mend: what to try instead.
    """

    def __init__(
        self,
        message: str,
        *,
        nearest: tuple[dict[str, Any], ...] = (),
        lost: dict[str, Any] | None = None,
        not_kept: bool = False,
        mend: str | None = None,
    ) -> None:
        super().__init__(message, mend=mend)
        self.nearest = nearest
        self.lost = lost
        self.not_kept = not_kept

    def as_dict(self) -> dict[str, Any]:
        """The error as it appears under `error` in `--json` output, with `nearest`, `lost` and `not_kept`."""
        return {
            **super().as_dict(),
            "nearest": list(self.nearest),
            "lost": self.lost,
            "not_kept": self.not_kept,
        }
