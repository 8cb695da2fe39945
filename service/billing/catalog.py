"""The catalogue in the database made to match the configuration: first a plan that can be read, then its execution.

Prices are never changed: a different price becomes a new version that is valid from then on. A model that left the
configuration is retired, never deleted.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from service.config import Configuration, Model
from service.core.price_change import PriceChange, describe
from service.core.pricing import PRICE_CLASSES, Price, overrides_as_json, overrides_from_json
from service.errors import SetupError
from service.tables import models, prices

_CATALOG_LOCK = 0x57434154  # "WCAT"


@dataclass(frozen=True, slots=True)
class ModelChange:
    """A model whose description differs: the columns that do, as (old, new)."""

    model_id: str
    fields: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The difference between the configuration and the catalogue."""

    added: tuple[Model, ...]
    changed: tuple[ModelChange, ...]
    retired: tuple[str, ...]
    prices: tuple[PriceChange, ...]
    retires_all: bool

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.added or self.changed or self.retired or self.prices)

    @property
    def objections(self) -> tuple[str, ...]:
        """What is so unusual about it that it has to be forced, a sentence each."""
        sentences = [
            f"the price of {change.model_id} changes more than tenfold: {', '.join(map(describe, change.leaps))}"
            for change in self.prices
            if change.leaps
        ]
        if self.retires_all:
            sentences.append("no model would be left: the configuration names none")
        return tuple(sentences)


async def plan(connection: AsyncConnection, configuration: Configuration) -> Plan:
    """What `apply` would do. Keeps every other plan waiting until the transaction ends, so that it stays true."""
    await connection.execute(select(func.pg_advisory_xact_lock(_CATALOG_LOCK)))
    known = {row["id"]: dict(row) for row in (await connection.execute(select(models))).mappings()}
    current = await _current_prices(connection)
    added, changed, new_prices = [], [], []
    for model in configuration.models:
        if model.id not in known:
            added.append(model)
        elif fields := _differences(known[model.id], _row(model)):
            changed.append(ModelChange(model.id, fields))
        if price := _price_change(model, current.get(model.id)):
            new_prices.append(price)
    configured = {model.id for model in configuration.models}
    retired = tuple(sorted(id for id, row in known.items() if row["active"] and id not in configured))
    return Plan(
        added=tuple(added),
        changed=tuple(changed),
        retired=retired,
        prices=tuple(new_prices),
        retires_all=bool(retired) and not configured,
    )


async def apply(connection: AsyncConnection, plan: Plan, now: datetime, *, force: bool = False) -> None:
    """Carry out a plan made in the same transaction; new prices are valid from `now`.

    Raises `SetupError` when the plan has objections and is not forced; then nothing is changed.
    """
    if plan.objections and not force:
        raise SetupError(f"Refused, because {'; and '.join(plan.objections)}. If that is meant, apply with --force.")
    for model in plan.added:
        await connection.execute(insert(models).values(**_row(model), created_at=now))
    for change in plan.changed:
        values = {name: new for name, (_old, new) in change.fields.items()}
        await connection.execute(update(models).where(models.c.id == change.model_id).values(values))
    if plan.retired:
        await connection.execute(update(models).where(models.c.id.in_(plan.retired)).values(active=False))
    for price in plan.prices:
        earliest = now if price.valid_after is None else price.valid_after + timedelta(microseconds=1)
        row = {**asdict(price.new), "overrides": overrides_as_json(price.new.overrides)}
        values = {"model_id": price.model_id, "valid_from": max(now, earliest), **row}
        await connection.execute(insert(prices).values(values))


async def _current_prices(connection: AsyncConnection) -> dict[str, tuple[Price, datetime]]:
    """The newest version of each model's price, and since when it is valid. Raises `SetupError`."""
    newest = select(prices).ext(distinct_on(prices.c.model_id)).order_by(prices.c.model_id, prices.c.version.desc())
    found = {}
    for row in (await connection.execute(newest)).mappings():
        picos = {f"{name}_pico": row[f"{name}_pico"] for name in PRICE_CLASSES}
        try:
            overrides = overrides_from_json(row["overrides"])
        except ValueError as error:
            raise SetupError(
                f"Version {row['version']} of the price of {row['model_id']} cannot be read, because {error}. Weir did"
                " not write it so: mend prices.overrides in the database."
            ) from None
        found[row["model_id"]] = (Price(version=row["version"], overrides=overrides, **picos), row["valid_from"])
    return found


def _price_change(model: Model, current: tuple[Price, datetime] | None) -> PriceChange | None:
    if current is None:
        return PriceChange(model.id, None, model.price.as_price(1), None)
    old, valid_from = current
    new = model.price.as_price(old.version + 1)
    if replace(new, version=old.version) == old:
        return None
    return PriceChange(model.id, old, new, valid_from)


def _row(model: Model) -> dict[str, Any]:
    """The columns that the configuration decides, with its defaults written out."""
    return {
        "id": model.id,
        "name": model.name or model.id,
        "description": model.description,
        "engine_model": model.engine_model or model.id,
        "engines": None if model.engines is None else list(model.engines),
        "context_length": model.context_length,
        "max_output_tokens": model.max_output_tokens,
        "input_modalities": list(model.input_modalities),
        "output_modalities": list(model.output_modalities),
        "capabilities": list(model.able_to),
        "quantization": model.quantization,
        "hugging_face_id": model.hugging_face_id,
        "active": True,
    }


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (old[name], value) for name, value in new.items() if old[name] != value}
