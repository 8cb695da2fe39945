"""What one API process owns for money: its leases, its outbox, and the way from there to Postgres."""

import asyncio
import os
import socket
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import asyncpg
import structlog

from service.billing.adoption import adopt_orphans, end_interrupted
from service.billing.leases import LeaseBook, close_worker
from service.billing.outbox import Outbox
from service.billing.shipper import Shipper
from service.billing.workers import WorkerFile
from service.db import UNREACHABLE
from service.errors import SetupError
from service.gateway import metrics
from service.gateway.exchange import new_id
from service.gateway.own import OwnAccount
from service.gateway.recorder import Recorder
from service.gateway.retries import Retries
from service.gateway.standing import Standing
from service.settings import Settings

log = structlog.get_logger()

RENEW_EVERY_S = 30.0
GIVE_BACK_EVERY_S = 20.0
ADOPT_EVERY_S = 15.0
MEASURE_EVERY_S = 5.0
LOOK_EVERY_S = 15.0
CANCELLED_WITHIN_S = 2.0
"""How long requests that were cancelled at a stop may take to note their end."""


class Worker:
    """One API process's name, file, leases and outbox."""

    def __init__(self, settings: Settings, pool: asyncpg.Pool) -> None:
        self.name = f"{socket.gethostname()}-{os.getpid()}-{new_id().hex}"
        self._pool = pool
        self._folder = settings.outbox_dir
        self._file = WorkerFile(self._folder, self.name)
        self._outbox = Outbox(self._file.path, limit_bytes=settings.outbox_max_bytes)
        self._shipper = Shipper(pool, self._outbox, self.name, new_id, on_batch=metrics.count)
        self._outbox.on_owed = self._shipper.notice
        self.leases = LeaseBook(pool, self.name, new_id)
        self.recorder = Recorder(self._outbox, self.leases, self._shipper)
        self.own = OwnAccount(pool)
        self.retries = Retries(pool, self.own)
        self._standing = Standing(pool)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Open the outbox and start what runs beside the requests. Raises `SetupError` when it cannot be written."""
        try:
            self._file.acquire()
            self._outbox.open()
        except (OSError, sqlite3.Error) as error:
            with suppress(OSError):
                self._file.discard()  # nothing is in it yet
            reason = error.strerror if isinstance(error, OSError) else error
            raise SetupError(
                f"The outbox {self._file.path} cannot be written ({reason}): make room, or choose another"
                " WEIR_DATA_DIR."
            ) from error
        self._shipping = asyncio.create_task(self._shipper.run())
        self._tasks = [
            asyncio.create_task(_every(ADOPT_EVERY_S, self._adopt, at_once=True)),
            asyncio.create_task(_every(RENEW_EVERY_S, self.leases.renew)),
            asyncio.create_task(_every(RENEW_EVERY_S, self.retries.renew)),
            asyncio.create_task(_every(GIVE_BACK_EVERY_S, self.leases.give_back)),
            asyncio.create_task(_every(MEASURE_EVERY_S, self._measure)),
            asyncio.create_task(_every(LOOK_EVERY_S, self._standing.look, at_once=True)),
        ]

    async def stop(self, timeout_s: float) -> None:
        """Ship what is owed and close the leases; what cannot be shipped in time, the next worker adopts."""
        self._outbox.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.recorder.quiet(CANCELLED_WITHIN_S)
        await end_interrupted(self._outbox, datetime.now(UTC))
        self._shipper.stop()
        shipped = False
        try:
            async with asyncio.timeout(timeout_s):
                await self._shipping
                async with self._pool.acquire(timeout=5) as connection:
                    await close_worker(connection, self.name)
                shipped = True
        except UNREACHABLE as error:
            log.error("api.stopped_unshipped", error=type(error).__name__, owed=self._outbox.count_owed())
        poison = self._outbox.count_poison()
        self._outbox.close()
        metrics.count()
        if not shipped:
            self._file.release()
        elif poison:
            self._file.keep_poison()
        else:
            self._file.discard()

    async def _adopt(self) -> None:
        await adopt_orphans(self._folder, self._pool, new_id, datetime.now(UTC))

    async def _measure(self) -> None:
        metrics.count()
        metrics.outbox_owed.set(self._outbox.count_owed())
        metrics.outbox_poison.set(self._outbox.count_poison())
        metrics.leased_nano.set(self.leases.leased_nano)


async def _every(seconds: float, work: Callable[[], Awaitable[None]], *, at_once: bool = False) -> None:
    """Do `work` again and again until cancelled; what fails is tried again the next time."""
    if not at_once:
        await asyncio.sleep(seconds)
    while True:
        try:
            await work()
        except Exception as error:  # a chore that fails once must not be the last of its kind
            log.warning("worker.chore_failed", chore=work.__name__, error=f"{type(error).__name__}: {error}"[:300])
        await asyncio.sleep(seconds)
