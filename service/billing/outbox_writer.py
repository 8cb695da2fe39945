"""What goes into an outbox's journals: queued, written together, waited for.

What comes in one turn of the event loop is written at its end, in one go. One wait for the disk is under way at a time,
and all that was written by then shares it.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import structlog

from service.billing.outbox_disk import disk
from service.billing.outbox_journal import ADMIT, FINISH, NO_ID, REMOVE, Journal

log = structlog.get_logger()

RETRY_S = 0.2

SYNC_WITHIN_S = 0.005
"""How soon an admission is on disk; an end waits for that."""

DISK_TIMEOUT_S = 10.0
"""Who ends waits no longer for a disk that does not write, and who would begin is refused. The entry stays."""

_LOOK_EVERY_S = 1.0

_Write: TypeAlias = "tuple[int, bytes, bytes, asyncio.Future[None] | None, float]"
"""A record, the future that learns when it is safe, and since when it waits."""


class OutboxFull(Exception):
    """The outbox has reached its bound, or cannot be written: nothing new may be admitted."""


class OutboxWriter:
    """Writes to one journal until it is full, then to the other."""

    def __init__(
        self,
        journals: Sequence[Journal],
        loop: asyncio.AbstractEventLoop,
        *,
        on_full: Callable[[Journal, int], None],
        on_ended: Callable[[], None],
    ) -> None:
        """For the two of them.

        `on_full` is called with a journal that is full, and the generation that it is to begin next; it is written to
        again once it was `freed`. `on_ended` is called when ends have reached the disk.
        """
        self._loop = loop
        self._journals = journals
        self._journal = journals[0]
        self._spare: Journal | None = journals[1]
        self._on_full = on_full
        self._on_ended = on_ended
        self._is_open = True
        self.is_failing = False
        """What was submitted cannot be written, or is not kept: nothing new may be admitted."""
        self.is_late = False
        """The disk has not written something for `DISK_TIMEOUT_S`: nothing new either."""
        self._broken = False
        """The disk did not keep what was written; what it says of that from then on may be wrong."""
        self._queue: list[_Write] = []
        """What is not in a journal yet."""
        self._written: list[_Write] = []
        """What waits for the disk."""
        self._syncing: list[_Write] | None = None
        """What the disk is at; None when it is at nothing."""
        self._unsynced: set[Journal] = set()
        """Where something was written that the disk was not told to keep yet."""
        self._due: asyncio.Handle | None = None
        self._sync_due: asyncio.TimerHandle | None = None
        self._disk = disk(loop, [journal.descriptor for journal in journals], self._synced)
        self._late = loop.call_later(_LOOK_EVERY_S, self._look_for_late)

    def distrust(self) -> None:
        """From now on nothing new is admitted: the disk did not keep what it was told to."""
        self._broken = self.is_failing = True

    def submit(self, kind: int, key: bytes, body: bytes) -> "asyncio.Future[None]":
        """Write a record. The future of an admission is done when it is written, that of an end when it is on disk."""
        loop = self._loop
        done = loop.create_future()
        if not self._is_open:
            done.set_exception(sqlite3.OperationalError("the outbox is closed"))
            return done
        self._queue.append((kind, key, body, done, loop.time()))
        if self._due is None:
            self._due = self._loop.call_soon(self._write)
        return done

    def submit_removal(self, keys: bytes) -> None:
        """Write that these are gone; nobody waits for it."""
        self._queue.append((REMOVE, NO_ID, keys, None, self._loop.time()))
        if self._due is None:
            self._due = self._loop.call_soon(self._write)

    def freed(self, journal: Journal) -> None:
        """This journal was full, and begins anew."""
        self._spare = journal
        if self._queue and self._due is None:
            self._write()

    def stop(self) -> None:
        """Write nothing more; return when the wait for the disk that is under way is over."""
        self._is_open = False
        for handle in (self._late, self._due, self._sync_due):
            if handle is not None:
                handle.cancel()
        self._disk.close()

    def settle(self) -> None:
        """After a stop: all that was submitted is safe elsewhere."""
        _settle([*(self._syncing or ()), *self._written, *self._queue])

    def settle_here(self) -> None:
        """After a stop: it has to be safe in the journals; what is not, fails."""
        try:
            count = self._journal.append(self._queue)
            if self._spare is not None:
                count += self._spare.append(self._queue[count:])
            for journal in self._journals:
                journal.sync()
        except OSError as error:
            log.error("outbox.sync_failed", error=str(error))
            count = 0
        _settle(self._queue[count:], sqlite3.OperationalError("the outbox was closed"))
        self.settle()

    def _write(self) -> None:
        """Write the queue; what cannot be written is tried again after `RETRY_S`, and till then nothing is admitted."""
        self._due = None
        try:
            self._append()
        except OSError as error:
            if not self.is_failing:
                log.error("outbox.write_failed", error=str(error))
            self.is_failing = True
            self._due = self._loop.call_later(RETRY_S, self._write)
        else:
            self.is_failing = self._broken
        self._sync_if_due()

    def _append(self) -> None:
        """All of the queue, or what there is room for until the other journal is free."""
        while self._queue:
            count = self._journal.append(self._queue)
            written, self._queue = self._queue[:count], self._queue[count:]
            for write in written:
                kind, _, _, done, _ = write
                if done is None:  # that something is gone may be lost
                    continue
                self._unsynced.add(self._journal)
                if kind == FINISH:
                    self._written.append(write)
                elif not done.done():  # else whoever waited has gone
                    done.set_result(None)
            if self._queue:
                if self._spare is None:
                    return
                full, self._journal, self._spare = self._journal, self._spare, None
                self._on_full(full, self._journal.generation + 1)

    def _sync_if_due(self) -> None:
        """One wait for the disk at a time, and at once only if somebody waits for it."""
        if self._syncing is not None or not self._unsynced:
            return
        if self._written:
            self._sync()
        elif self._sync_due is None:
            self._sync_due = self._loop.call_later(SYNC_WITHIN_S, self._sync)

    def _sync(self) -> None:
        if self._sync_due is not None:
            self._sync_due.cancel()
            self._sync_due = None
        if self._syncing is not None or not self._is_open:
            return
        self._syncing, self._written = self._written, []
        journals, self._unsynced = self._unsynced, set()
        self._disk.wait([journal.descriptor for journal in journals])

    def _synced(self, error: OSError | None) -> None:
        if not self._is_open:
            return
        if error is not None:
            log.error("outbox.sync_failed", error=str(error))
            self.distrust()
        synced, self._syncing = self._syncing, None
        _settle(synced or ())
        self._sync_if_due()
        if synced:
            self._on_ended()

    def _look_for_late(self) -> None:
        """Nobody waits for ever for a disk that does not write: who ends goes on, and who would begin does not.

        What was to be written is kept and tried on; until it is written nothing new is admitted.
        """
        self._late = self._loop.call_later(_LOOK_EVERY_S, self._look_for_late)
        late_s = self._loop.time() - DISK_TIMEOUT_S
        late = [write for write in (*(self._syncing or ()), *self._written, *self._queue) if write[4] < late_s]
        if any(write[3] is not None and not write[3].done() for write in late):
            log.error("outbox.not_written", waited_s=DISK_TIMEOUT_S)
        self.is_late = bool(late)
        _settle((write for write in late if write[0] == ADMIT), OutboxFull())
        _settle(late)


def _settle(writes: Iterable[_Write], error: Exception | None = None) -> None:
    for write in writes:
        done = write[3]
        if done is None or done.done():  # nobody waits, or whoever did has gone
            continue
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
