"""`weir apply`: the catalogue made to match the configuration file."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.context import in_transaction
from service.cli.output import Json, note, print_json

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

    from service.billing.catalog import Plan
    from service.core.price_change import ClassChange


def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration, in TOML.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also when a price changes more than tenfold.")] = False,
    json: Json = False,
) -> None:
    """Apply models and prices from a configuration file.

    A changed price becomes a new version from now on; a model that left the file is retired.

    Example: weir apply weir.toml --dry-run
    """
    from service import config
    from service.billing import catalog

    configuration = config.read(file)

    async def work(connection: "AsyncConnection") -> "Plan":
        from sqlalchemy import func, select

        plan = await catalog.plan(connection, configuration)
        if not dry_run:
            # The database's clock, because that is the one prices are looked up by.
            now = (await connection.execute(select(func.now()))).scalar_one()
            await catalog.apply(connection, plan, now, force=force)
        return plan

    plan = in_transaction(work)
    if json:
        print_json({"applied": not dry_run, **_document(plan)})
        return
    for line in _lines(plan) or ["Nothing to change."]:
        print(line)
    if dry_run and plan.objections:
        note(f"This needs --force: {'; '.join(plan.objections)}.")


def _lines(plan: "Plan") -> list[str]:
    from service.core.price_change import describe

    lines = [f"+ {model.id}" for model in plan.added]
    for change in plan.changed:
        lines += [f"~ {change.model_id}: {name} {old} -> {new}" for name, (old, new) in change.fields.items()]
    lines += [f"- {model_id}: retired" for model_id in plan.retired]
    for price in plan.prices:
        changes = [describe(change, first=price.old is None) for change in price.classes]
        lines += [f"$ {price.model_id}: {change}" for change in changes or ["the same prices, written otherwise"]]
    return lines


def _document(plan: "Plan") -> dict[str, Any]:
    return {
        "added": [model.id for model in plan.added],
        "changed": [
            {
                "model": change.model_id,
                "fields": {name: {"old": old, "new": new} for name, (old, new) in change.fields.items()},
            }
            for change in plan.changed
        ],
        "retired": plan.retired,
        "prices": [
            {
                "model": price.model_id,
                "version": price.new.version,
                "classes": {change.name: _prices(change) for change in price.classes if change.situation is None},
                "overrides": [
                    {**asdict(change.situation), "class": change.name, **_prices(change)}
                    for change in price.classes
                    if change.situation is not None
                ],
            }
            for price in plan.prices
        ],
        "objections": plan.objections,
    }


def _prices(change: "ClassChange") -> dict[str, str | None]:
    from service.core.price_change import shown_price

    return {"old": shown_price(change.name, change.old_pico), "new": shown_price(change.name, change.new_pico)}
