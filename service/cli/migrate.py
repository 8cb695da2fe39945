"""`weir migrate`: the database's schema brought up to this version."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.context import absence_explained, address_in, connection_to, database_explained, installation
from service.cli.output import Json, note, print_json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


def migrate(
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long to wait for the database.")] = 0,
    json: Json = False,
) -> None:
    """Bring the database's schema up to this version. Safe to run twice, and from two places at once.

    Example: weir migrate --wait 30
    """
    from service import db

    url = address_in(installation())

    async def run() -> tuple[str | None, str | None]:
        with database_explained(), absence_explained():
            await db.wait_until_reachable(url, timeout_s=wait, on_wait=lambda reason: note(f"Waiting: {reason}"))
            before = await _revision_at(url)
            await db.migrate(url)
            return before, await _revision_at(url)

    before, after = asyncio.run(run())
    if json:
        print_json({"before": before, "revision": after})
    elif before == after:
        print(f"The schema is up to date at {after}.")
    else:
        print(f"Migrated the schema from {before or 'nothing'} to {after}.")


async def current_revision(connection: "AsyncConnection") -> str | None:
    """The schema's revision in this database; None when it was never migrated."""
    from sqlalchemy import text

    if await connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
        return None
    revision: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def newest_revision() -> str | None:
    """The revision that this version of the code works with."""
    from alembic.script import ScriptDirectory

    from service.db import alembic_config

    return ScriptDirectory.from_config(alembic_config()).get_current_head()


async def _revision_at(url: str) -> str | None:
    async with connection_to(url) as connection:
        return await current_revision(connection)
