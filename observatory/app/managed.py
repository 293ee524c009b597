"""One pipeline of a platform: a job in a thread of its own, and what became of it."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable

from observatory.app.errors import EndedAtOnce
from observatory.app.job import EndedBeforeItBegan, Job
from observatory.app.summary import RunSummary
from observatory.errors import ObservatoryError
from observatory.model.errors import MediaObservatoryError
from observatory.model.status import PipelineState, PipelineStatus


class ManagedPipeline:
    """A job that runs in its own thread. Any thread may call anything.

    Args:
        on_change: called in the job's thread when it runs, and when it has ended.
        on_warning: called there with every warning.
    """

    def __init__(
        self,
        job: Job,
        on_change: Callable[[ManagedPipeline], None],
        on_warning: Callable[[ManagedPipeline, str], None],
    ) -> None:
        self.job = job
        self.name = job.typed.pipeline.name
        self.summary: RunSummary | None = None
        self.error: MediaObservatoryError | None = None
        self._on_change = on_change
        self._on_warning = on_warning
        self._end: PipelineState | None = None
        self._ended_at: float | None = None
        self._asked = False
        self._began = False  # all its workers run, or ran
        self._settled = threading.Event()  # it began, or it never will
        self._thread = threading.Thread(target=self._run, name=f"job {self.name}", daemon=True)

    def start(self) -> None:
        """Start the job."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it has not come to its end."""
        return self._end is None

    @property
    def status(self) -> PipelineStatus:
        """As others see it."""
        status = self.job.status
        if self._end is None:
            return status
        reason = None if self.error is None else str(self.error)
        return status.model_copy(
            update={"state": self._end, "reason": reason, "ended_unix_seconds": self._ended_at, "edges": ()}
        )

    def stop(self, *, at_once: bool = False) -> None:
        """End it early, in good order (asking again changes nothing), or at once: then what is unfinished is lost."""
        if at_once or not self._asked:
            self._asked = True
            self.job.interrupt(at_once=at_once)

    def wait_until_begun(self, timeout_seconds: float) -> None:
        """Until all its workers run. Raises what the job failed with before that."""
        self._settled.wait(timeout_seconds)
        if self.error is not None and not self._began:
            raise self.error

    def join(self, timeout_seconds: float) -> bool:
        """Wait for its end; False after the timeout."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        end: PipelineState = "failed"
        try:
            self.summary = self.job.run(self._note_status, lambda words: self._on_warning(self, words))
            end = "removed" if self._asked else "ended"
        except EndedBeforeItBegan:
            end = "removed"
        except KeyboardInterrupt:  # told to end at once, or the drain took too long
            self.error = EndedAtOnce("ended at once: what was in flight, and unfinished outputs, were thrown away")
        except MediaObservatoryError as error:
            self.error = error
        except BaseException as error:  # a defect of ours ends this pipeline, not the platform
            if os.environ.get("OBSERVATORY_DEBUG"):
                traceback.print_exception(error)
            self.error = ObservatoryError(f"internal error: {type(error).__name__}: {error}")
        finally:
            self._ended_at = time.time()
            self._end = end
            self._settled.set()
            self._on_change(self)

    def _note_status(self, _status: PipelineStatus) -> None:
        if not self._began:
            self._began = True
            self._settled.set()
            self._on_change(self)
