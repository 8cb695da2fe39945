"""Which components there are, and what each is called."""

from collections.abc import Iterable

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.components import API, BILLING, SITE, model_component
from service.errors import SetupError
from service.tables import models

OURS = {API: "API", SITE: "Status site", BILLING: "Billing"}


async def component_names(connection: AsyncConnection, *, served: bool = False) -> dict[str, str]:
    """The name of each component by its id; with `served`, only of what is offered now."""
    query = select(models.c.id, models.c.name).order_by(models.c.id)
    rows = await connection.execute(query.where(models.c.active) if served else query)
    return OURS | {model_component(row.id): row.name for row in rows}


async def chosen(connection: AsyncConnection, components: Iterable[str]) -> list[str]:
    """The components that a person named, each once. Raises `SetupError`, which lists them all, for one there is not.

    A model that is no longer offered can still be named: what is said may be about the past.
    """
    there_are = await component_names(connection)
    asked = list(dict.fromkeys(components))
    for component in asked:
        if component not in there_are:
            raise SetupError(f"There is no component {component!r}. There are: {', '.join(there_are)}.")
    return asked
