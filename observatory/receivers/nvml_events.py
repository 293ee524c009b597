"""Xids that NVIDIA's driver tells through NVML's event sets, as soon as it tells them. A thread waits for them."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import pynvml

from observatory.model.observation import Address, AddressKind, HardwareEvent, Seen
from observatory.receivers import nvml_library
from observatory.receivers.errors import ReceiverFailed, ReceiverUnavailable
from observatory.receivers.nvml_library import pci_key
from observatory.receivers.protocol import ReceiverContext

_WAIT_MILLISECONDS = 250  # how late the thread hears that it is to end
_END_SECONDS = 5.0
_PAUSE_SECONDS = 0.05  # where NVML fails again and again
_MOST_ERRORS_IN_A_ROW = 100


class NvmlEvents:
    """Xids of the GPUs of one machine."""

    name: ClassVar[str] = "nvml-events"

    def __init__(self) -> None:
        self._started = False
        self._set: Any = None
        self._subjects: dict[int, Address] = {}
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    async def open(self, context: ReceiverContext) -> None:
        """Start NVML and register with every GPU that tells of Xids."""
        nvml_library.start(context)
        self._started = True
        try:
            with nvml_library.answers():
                self._register(context.node)
            if not self._subjects:
                raise ReceiverUnavailable("no GPU tells of Xids through NVML", mend="the kernel's log has them too")
        except BaseException:
            await self.close()
            raise

    def _register(self, node: str) -> None:
        self._set = pynvml.nvmlEventSetCreate()
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                self._register_one(index, node)
            except pynvml.NVMLError as error:
                if nvml_library.concerns_all(error):
                    raise

    def _register_one(self, index: int, node: str) -> None:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if not pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError:
            return
        key = pci_key(pynvml.nvmlDeviceGetPciInfo(handle).busId)
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        self._subjects[_number(handle)] = Address(node, AddressKind.PCI, key)

    async def events(self) -> AsyncIterator[Sequence[Seen]]:
        """Each Xid as it is told. Raises ReceiverFailed where NVML does not answer any more."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[HardwareEvent | ReceiverFailed] = asyncio.Queue()

        def put(item: HardwareEvent | ReceiverFailed) -> None:
            with suppress(RuntimeError):  # the loop ended before the thread
                loop.call_soon_threadsafe(queue.put_nowait, item)

        self._thread = threading.Thread(target=self._wait, args=(put,), name="nvml-events", daemon=True)
        self._thread.start()
        while True:
            item = await queue.get()
            if isinstance(item, ReceiverFailed):
                raise item
            together: list[Seen] = [item]
            while not queue.empty() and isinstance(more := queue.get_nowait(), HardwareEvent):
                together.append(more)
            yield together

    def _wait(self, put: Any) -> None:
        errors = 0
        while not self._ending.is_set():
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, _WAIT_MILLISECONDS)
            except pynvml.NVMLError_Timeout:
                errors = 0
                continue
            except pynvml.NVMLError_GpuIsLost:  # the Xid that says so comes, or came, as an event
                self._ending.wait(_PAUSE_SECONDS)
                continue
            except pynvml.NVMLError as error:  # of one GPU it may be, for a while
                errors += 1
                if errors > _MOST_ERRORS_IN_A_ROW or nvml_library.concerns_all(error):
                    put(ReceiverFailed(f"NVML: {error}"))
                    return
                self._ending.wait(_PAUSE_SECONDS)
                continue
            errors = 0
            event = self._event(data)
            if event is not None:
                put(event)

    def _event(self, data: Any) -> HardwareEvent | None:
        subject = self._subjects.get(_number(data.device))
        if subject is None or data.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        code = str(data.eventData)
        return HardwareEvent(subject, "xid", f"Xid {code}", time.monotonic_ns(), self.name, code)

    async def close(self) -> None:
        """End the thread, free the set, stop NVML."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_END_SECONDS)
            if self._thread.is_alive():
                return  # it hangs in NVML, and what it uses is not taken from under it
            self._thread = None
        if self._set is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(self._set)
            self._set = None
        if self._started:
            self._started = False
            nvml_library.stop()


def _number(handle: Any) -> int:
    """What tells one handle from another: the address that it holds."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
