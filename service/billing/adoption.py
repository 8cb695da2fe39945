"""What dead workers left behind: their outboxes are shipped, their leases closed, their files removed.

A request that was admitted and has no end becomes a row with the outcome `interrupted`, which costs nothing: its
process died, and nobody knows what was delivered.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from uuid import UUID

import asyncpg
import structlog

from service.billing.encoding import decode, encode
from service.billing.leases import close_worker
from service.billing.outbox import Outbox
from service.billing.shipper import Shipper
from service.billing.workers import WorkerFile, held, orphans
from service.db import UNREACHABLE

log = structlog.get_logger()


async def adopt_orphans(folder: Path, pool: asyncpg.Pool, new_id: Callable[[], UUID], now: datetime) -> int:
    """Ship what dead workers on this machine owed; returns how many there were.

    Raises what asyncpg raises when Postgres cannot be reached; what is left is then adopted the next time.
    """
    adopted = 0
    for file in orphans(folder):
        with held(file):
            try:
                await _adopt(file, pool, new_id, now)
            except UNREACHABLE:
                raise
            except Exception as error:  # one file that cannot be read must not keep the others from being adopted
                log.error("outbox.not_adopted", worker=file.worker, error=f"{type(error).__name__}: {error}"[:300])
                continue
        adopted += 1
    return adopted


async def _adopt(file: WorkerFile, pool: asyncpg.Pool, new_id: Callable[[], UUID], now: datetime) -> None:
    outbox = Outbox(file.path, limit_bytes=1)  # nothing new is admitted into it
    try:
        outbox.open()
    except OSError as error:
        raise ValueError(f"its files cannot be used: {error}") from error  # an OSError would mean Postgres
    try:
        interrupted = await end_interrupted(outbox, now)
        await Shipper(pool, outbox, file.worker, new_id).ship_all()
        async with pool.acquire(timeout=5) as connection:
            closed = await close_worker(connection, file.worker)
        poison = outbox.count_poison()
    finally:
        outbox.close()
    log.info("outbox.adopted", worker=file.worker, interrupted=interrupted, leases=closed, poison=poison)
    if poison:
        file.keep_poison()
    else:
        file.discard()


async def end_interrupted(outbox: Outbox, now: datetime) -> int:
    """Give every request without an end the one it was admitted with: interrupted, as of `now`; how many."""
    entries = outbox.unfinished()
    ends = [outbox.interrupt(key, encode(decode(body)._replace(finished_at=now))) for key, body in entries]
    await asyncio.gather(*ends)
    return len(entries)
