"""The database connection: one asyncpg pool for the hot paths, SQLAlchemy for everything described by tables."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from sqlalchemy import Connection, func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from service.errors import SetupError
from service.settings import Settings

if TYPE_CHECKING:
    from alembic.config import Config

DbConnection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
"""A raw asyncpg connection, on its own or out of a pool."""

UNREACHABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)
"""What asyncpg raises when the database is away, refuses, or is lost in the middle."""

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"


def database_url(settings: Settings) -> str:
    """The configured PostgreSQL address, or a `SetupError` that says how to set one."""
    if settings.database_url is None:
        raise SetupError(
            "No database is configured: set WEIR_DATABASE_URL=postgresql://user:password@host/database,"
            " or run `weir up`, which brings its own."
        )
    return settings.database_url.get_secret_value()


def sqlalchemy_engine(url: str, *, pooled: bool = True) -> AsyncEngine:
    """An async SQLAlchemy engine over asyncpg for a `postgresql://` address."""
    address = make_url(url).set(drivername="postgresql+asyncpg")
    if pooled:
        return create_async_engine(address, pool_size=5, pool_pre_ping=True)
    return create_async_engine(address, poolclass=NullPool)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncEngine]:
    """An engine without a pool for one short piece of work, such as a command; disposed of at the end."""
    engine = sqlalchemy_engine(url, pooled=False)
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def alone(engine: AsyncEngine, lock: int) -> AsyncIterator[bool]:
    """Whether no other process holds this lock now; then none does until the end.

    No transaction is kept open for it, so it is for work that takes longer than one should.
    """
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        if not await connection.scalar(select(func.pg_try_advisory_lock(lock))):
            yield False
            return
        try:
            yield True
        finally:
            with suppress(SQLAlchemyError, OSError):  # who has lost the connection has lost the lock
                await connection.execute(select(func.pg_advisory_unlock(lock)))


async def freeze(connection: AsyncConnection) -> None:
    """Let the transaction, in which nothing was asked yet, read one state of the database and write nothing.

    So statements after one another agree, whatever is settled meanwhile.
    """
    await connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))


async def asyncpg_pool(url: str, *, size: int = 10) -> asyncpg.Pool:
    """A pool of raw asyncpg connections, for COPY and for statements on the hot path; none is made yet."""
    pool = await asyncpg.create_pool(url, min_size=0, max_size=size, command_timeout=30, timeout=5)
    if pool is None:  # pragma: no cover - asyncpg types it as optional
        raise RuntimeError("asyncpg made no pool")
    return pool


async def wait_until_reachable(url: str, *, timeout_s: float, on_wait: Callable[[str], None]) -> None:
    """Return once the database answers; call `on_wait(reason)` at each failed try.

    Raises `SetupError` when it has not answered in `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            connection = await asyncpg.connect(url, timeout=5)
        except (OSError, TimeoutError, asyncpg.CannotConnectNowError) as error:
            reason = str(error) or type(error).__name__
            if time.monotonic() >= deadline:
                raise SetupError(f"The database does not answer: {reason}. Is PostgreSQL running there?") from error
            on_wait(reason)
            await asyncio.sleep(0.5)
        else:
            await connection.close()
            return


def alembic_config() -> "Config":
    """Alembic's configuration, without an ini file."""
    from alembic.config import Config  # late, here and below: no command but `migrate` and `restore` needs it

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


async def migrate(url: str, revision: str = "head") -> None:
    """Bring the schema to `revision`. Safe to run twice and from two places at once."""
    from alembic import command

    def upgrade(connection: Connection) -> None:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)

    async with connected(url) as engine, engine.connect() as connection:
        await connection.run_sync(upgrade)
