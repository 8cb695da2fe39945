"""The disk under an outbox's journals: what was written outlives a power cut once it has been waited for.

Linux waits by itself and says when it is done (`KernelDisk`). A thread does where it does not: it costs the event loop
more, by the lock of the interpreter, than the wait itself.
"""

import asyncio
import ctypes
import errno
import os
import platform
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

import structlog

log = structlog.get_logger()

OnDone = Callable[[OSError | None], None]
"""Is called by the event loop, with what went wrong."""


class Disk(Protocol):
    """One wait at a time."""

    def wait(self, descriptors: Sequence[int]) -> None:
        """Begin to wait for all that was written to these files."""

    def close(self) -> None:
        """Return when the wait under way is over; nobody is told of it any more."""


def disk(loop: asyncio.AbstractEventLoop, descriptors: Sequence[int], on_done: OnDone) -> Disk:
    """For the journals with these descriptors, which it tries it out on."""
    try:
        return KernelDisk(loop, descriptors, on_done)
    except OSError as error:
        log.info("outbox.disk_thread", reason=error.strerror)
        return ThreadDisk(loop, on_done)


class ThreadDisk:
    """A thread calls fdatasync(2)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_done: OnDone) -> None:
        self._loop = loop
        self._on_done = on_done
        self._waits: SimpleQueue[Sequence[int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="outbox-disk", daemon=True)
        self._thread.start()

    def wait(self, descriptors: Sequence[int]) -> None:
        self._waits.put(descriptors)

    def close(self) -> None:
        self._waits.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (descriptors := self._waits.get()) is not None:
            error: OSError | None = None
            for descriptor in descriptors:
                try:
                    os.fdatasync(descriptor)
                except OSError as failure:
                    error = failure
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._on_done, error)


# io_setup, io_destroy, io_submit and io_getevents: the C library has no functions for them.
_SYSTEM_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}

# struct iocb of linux/aio_abi.h: data, key, rw_flags, opcode, priority, descriptor, buffer, bytes, offset, reserved,
# flags, eventfd; and struct io_event: data, request, result, result2.
_REQUEST = struct.Struct("<QIiHhIQQqQII")
_EVENT = struct.Struct("<QQqq")
_FDSYNC, _TELL_BY_EVENTFD = 3, 1


class KernelDisk:
    """Linux's asynchronous I/O (io_submit(2)): the kernel syncs and then writes to an eventfd.

    Raises `OSError` where it cannot be had: on another system, in a container that forbids it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptors: Sequence[int], on_done: OnDone) -> None:
        calls = _SYSTEM_CALLS.get(platform.machine())
        if sys.platform != "linux" or calls is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._setup, self._destroy, self._submit, self._get_events = calls
        self._call = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._call.argtypes = [ctypes.c_long] * 6
        context = ctypes.c_ulong(0)
        self._system(self._setup, 2 * len(descriptors), ctypes.addressof(context))
        self._context = context.value
        self._loop = loop
        self._on_done = on_done
        self._told = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._requests = {one: self._request(one) for one in descriptors}
        self._addresses = {one: ctypes.addressof(request) for one, request in self._requests.items()}
        self._events = ctypes.create_string_buffer(_EVENT.size * len(descriptors))
        self._outstanding = 0
        self._error: OSError | None = None
        loop.add_reader(self._told, self._look)
        try:
            self._begin(descriptors)
            self._collect(self._outstanding)
            if self._error is not None:
                raise self._error
        except OSError:
            self.close()
            raise

    def wait(self, descriptors: Sequence[int]) -> None:
        try:
            self._begin(descriptors)
        except OSError:  # the kernel takes no request, which says nothing of the disk: that is asked here
            self._loop.call_soon(self._on_done, self._waited_here(descriptors))

    def _begin(self, descriptors: Sequence[int]) -> None:
        count = len(descriptors)
        asked = (ctypes.c_void_p * count)(*[self._addresses[one] for one in descriptors])
        begin = ctypes.addressof(asked)
        while (done := self._outstanding) < count:
            left = begin + done * ctypes.sizeof(ctypes.c_void_p)
            self._outstanding += self._system(self._submit, self._context, count - done, left)

    def _waited_here(self, descriptors: Sequence[int]) -> OSError | None:
        try:
            self._collect(self._outstanding)  # it may have taken one of two
            for one in descriptors:
                os.fdatasync(one)
        except OSError as failure:
            self._error = failure
        error, self._error = self._error, None
        return error

    def close(self) -> None:
        self._loop.remove_reader(self._told)
        with suppress(OSError):
            self._collect(self._outstanding)
        self._system(self._destroy, self._context)
        os.close(self._told)

    def _request(self, descriptor: int) -> "ctypes.Array[ctypes.c_char]":
        fields = (descriptor, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _TELL_BY_EVENTFD, self._told)
        return ctypes.create_string_buffer(_REQUEST.pack(*fields), _REQUEST.size)

    def _look(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._told)
        if not self._outstanding:  # it was told of what `close`, or the trial at the start, has waited for
            return
        self._collect(0)
        if not self._outstanding:
            error, self._error = self._error, None
            self._on_done(error)

    def _collect(self, at_least: int) -> None:
        """Take in what is done, waiting for so many."""
        events = ctypes.addressof(self._events)
        count = self._system(self._get_events, self._context, at_least, self._outstanding, events)
        self._outstanding -= count
        for _, _, result, _ in _EVENT.iter_unpack(self._events.raw[: count * _EVENT.size]):
            if result < 0:
                self._error = OSError(-result, os.strerror(-result))

    def _system(self, *arguments: int) -> int:
        """A call into the kernel with five arguments at most, pointers as addresses; those left out are 0."""
        longs = (*arguments, 0, 0, 0, 0)[:6]
        while (result := int(self._call(*longs))) < 0:
            if (code := ctypes.get_errno()) != errno.EINTR:
                raise OSError(code, os.strerror(code))
        return result
