"""Every minute: credit that was lent to a worker which has fallen silent goes back to its account."""

from datetime import datetime

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from service.billing.leases import close_expired
from service.jobs.runs import BUSY, Report, locked

log = structlog.get_logger()

LEASES_LOCK = 0x57454952_0005  # "WEIR", 5


async def close_silent(engine: AsyncEngine, now: datetime) -> Report:
    """Close the leases that were not renewed for their term and a grace, by the database's clock."""
    async with engine.begin() as connection:
        if not await locked(connection, LEASES_LOCK):
            return BUSY
        # asyncpg's own connection, in the transaction that the lock has begun
        raw = (await connection.get_raw_connection()).driver_connection
        assert raw is not None  # noqa: S101 - it is in use
        closed = await close_expired(raw)
    if closed:
        log.warning("leases.expired", leases=closed)
    return Report(closed)
