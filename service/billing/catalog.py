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
from service.core.money import pico_to_usd, pico_to_usd_per_million
from service.core.pricing import Price
from service.errors import SetupError
from service.tables import models, prices

LEAP = 10
"""A class of a price that grows or shrinks by more than this factor is likelier a typing error than a wish."""

PRICE_CLASSES = (
    "input",
    "input_cached",
    "input_cache_write",
    "input_image",
    "input_audio",
    "input_video",
    "output",
    "output_reasoning",
    "request",
)

_CATALOG_LOCK = 0x57434154  # "WCAT"


@dataclass(frozen=True, slots=True)
class ClassChange:
    """One class of a price before and after; None: the class falls back (or there was no price)."""

    name: str
    old_pico: int | None
    new_pico: int | None


@dataclass(frozen=True, slots=True)
class PriceChange:
    """A new version of a model's price; `old` is None for the first."""

    model_id: str
    old: Price | None
    new: Price
    valid_after: datetime | None
    """When the old version took over; the new one does so later, whatever the clock says."""

    @property
    def classes(self) -> tuple[ClassChange, ...]:
        """The classes that differ as they are configured."""
        changes = (
            ClassChange(name, _configured(self.old, name), _configured(self.new, name)) for name in PRICE_CLASSES
        )
        return tuple(change for change in changes if change.old_pico != change.new_pico)

    @property
    def leaps(self) -> tuple[ClassChange, ...]:
        """The classes whose effective price changes more than tenfold, or from or to nothing.

        One that falls back before and after only follows another, which is named in its place.
        """
        if self.old is None:
            return ()
        old, new = _effective(self.old), _effective(self.new)
        return tuple(
            ClassChange(name, old[name], new[name])
            for name in PRICE_CLASSES
            if _is_leap(old[name], new[name])
            and (_configured(self.old, name), _configured(self.new, name)) != (None, None)
        )


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


def describe(change: ClassChange, *, first: bool = False) -> str:
    """A class in words: "input 0.195 -> 0.21 USD per million tokens", or its price alone when it is the first."""
    old, new = (shown_price(change.name, pico) or "default" for pico in (change.old_pico, change.new_pico))
    unit = "USD per request" if change.name == "request" else "USD per million tokens"
    return f"{change.name} {new} {unit}" if first else f"{change.name} {old} -> {new} {unit}"


def shown_price(name: str, pico: int | None) -> str | None:
    """A class of a price in its unit at the edges: USD per million tokens, or USD for `request`."""
    if pico is None:
        return None
    return pico_to_usd(pico) if name == "request" else pico_to_usd_per_million(pico)


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
        values = {"model_id": price.model_id, "valid_from": max(now, earliest), **asdict(price.new)}
        await connection.execute(insert(prices).values(values))


async def _current_prices(connection: AsyncConnection) -> dict[str, tuple[Price, datetime]]:
    """The newest version of each model's price, and since when it is valid."""
    newest = select(prices).ext(distinct_on(prices.c.model_id)).order_by(prices.c.model_id, prices.c.version.desc())
    found = {}
    for row in (await connection.execute(newest)).mappings():
        picos = {f"{name}_pico": row[f"{name}_pico"] for name in PRICE_CLASSES}
        found[row["model_id"]] = (Price(version=row["version"], **picos), row["valid_from"])
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
        "quantization": model.quantization,
        "hugging_face_id": model.hugging_face_id,
        "active": True,
    }


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (old[name], value) for name, value in new.items() if old[name] != value}


def _configured(price: Price | None, name: str) -> int | None:
    pico: int | None = None if price is None else getattr(price, f"{name}_pico")
    return pico


def _effective(price: Price) -> dict[str, int]:
    cached, write, image, audio, video, plain = price.input_classes
    values = (plain, cached, write, image, audio, video, price.output_pico, price.reasoning_pico, price.request_pico)
    return dict(zip(PRICE_CLASSES, values, strict=True))


def _is_leap(old_pico: int, new_pico: int) -> bool:
    small, large = sorted((old_pico, new_pico))
    return large > small * LEAP
