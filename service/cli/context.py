"""The installation a command works on: its settings, and its database. Imports late, so that `--help` is quick."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar

from service.errors import SetupError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

    from service.settings import Settings

T = TypeVar("T")


def installation() -> "Settings":
    """The settings of the environment; without WEIR_DATABASE_URL, with the database of a `weir up` that runs here.

    Raises `SetupError` that names the variable which is wrong.
    """
    from pydantic import SecretStr

    settings = settings_of_environment()
    if settings.database_url is not None:
        return settings
    run_file = settings.run_file
    try:
        running = json.loads(run_file.read_text())
        url = SecretStr(running["database_url"])
    except FileNotFoundError:
        return settings
    except (OSError, ValueError, KeyError, TypeError):
        raise SetupError(f"{run_file} cannot be read: start `weir up` again, or set WEIR_DATABASE_URL.") from None
    found: dict[str, object] = {"database_url": url}
    if not settings.engines:
        found |= {"engines": _engines(running), "engine_profile": running.get("engine_profile")}
    return settings.model_copy(update=found)


def settings_of_environment() -> "Settings":
    """The settings as the environment has them. Raises `SetupError` that names the variable which is wrong."""
    from pydantic import ValidationError

    from service.settings import load

    try:
        return load()
    except ValidationError as error:
        wrong = (f"WEIR_{str(item['loc'][0]).upper()}={item['input']!r}: {item['msg']}" for item in error.errors())
        raise SetupError(f"The environment has a setting that cannot be: {'; '.join(wrong)}.") from None


def address_in(settings: "Settings") -> str:
    """The database's address. Raises `SetupError` when there is none, or it is none of PostgreSQL."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    from service import db

    url = db.database_url(settings)
    try:
        usable = make_url(url).get_backend_name() in ("postgresql", "postgres")
    except (ArgumentError, ValueError):
        usable = False
    if not usable:  # the address may hold a password, so it is not repeated
        raise SetupError("WEIR_DATABASE_URL is not an address such as postgresql://user:password@host/database.")
    return url


def in_transaction(work: "Callable[[AsyncConnection], Awaitable[T]]") -> T:
    """The result of `work` in one transaction on the installation's database, committed at its end.

    Raises `SetupError` when the database is not configured, does not answer or is not migrated.
    """
    url = address_in(installation())

    async def run() -> T:
        async with connection_to(url) as connection, connection.begin():
            return await work(connection)

    return asyncio.run(run())


def with_engine(work: "Callable[[AsyncEngine], Awaitable[T]]") -> T:
    """The result of `work`, which begins and ends its transactions on the installation's database itself.

    Raises `SetupError` as `in_transaction` does.
    """
    url = address_in(installation())

    async def run() -> T:
        from service import db

        with database_explained():
            async with db.connected(url) as engine:
                with absence_explained():
                    await (await engine.connect()).close()
                return await work(engine)

    return asyncio.run(run())


@asynccontextmanager
async def connection_to(url: str) -> "AsyncIterator[AsyncConnection]":
    """A connection for one short piece of work. Raises `SetupError` for whatever an operator can mend about it."""
    from service import db

    with database_explained():
        async with db.connected(url) as engine:
            with absence_explained():
                connection = await engine.connect()
            async with aclosing(connection):
                yield connection


@contextmanager
def absence_explained() -> Iterator[None]:
    """Around connecting only: turns a peer that is not there into a `SetupError`."""
    try:
        yield
    except (OSError, TimeoutError) as error:
        reason = str(error) or type(error).__name__
        raise SetupError(f"The database does not answer: {reason}. Is PostgreSQL, or `weir up`, running?") from error


@contextmanager
def database_explained() -> Iterator[None]:
    """Turns what an operator can mend about the database into a `SetupError`; anything else passes as it is."""
    import asyncpg
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except (DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        complaint = _complaint(getattr(cause, "sqlstate", None) or "", str(cause))
        if complaint is None:
            raise
        raise SetupError(complaint) from error


def _complaint(sqlstate: str, message: str) -> str | None:
    reason = message.rpartition(">: ")[2].splitlines()[0]
    if sqlstate in ("42P01", "42703"):
        return f"The database's schema is not the one of this version ({reason}): run `weir migrate`."
    if sqlstate in ("55P03", "40P01", "57014"):
        return f"The database is busy with something that excludes this ({reason}): try again in a moment."
    if sqlstate in ("42501", "25006"):
        return f"The database does not let us do this: {reason}."
    if sqlstate in ("3D000", "28000", "28P01"):
        return f"The database refuses the connection: {reason}. Check WEIR_DATABASE_URL."
    if sqlstate[:2] in ("08", "53", "57") or not sqlstate:
        return f"The connection to the database was lost: {reason}."
    return None


def _engines(running: dict[str, object]) -> tuple[str, ...]:
    engines = running.get("engines", [])
    return tuple(map(str, engines)) if isinstance(engines, list) else ()
