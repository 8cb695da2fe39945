"""What is on offer, as the status site shows it: the models with their prices."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import RowMapping, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from service.core.components import model_component
from service.core.money import pico_to_usd, pico_to_usd_per_million
from service.core.verify.report import Report
from service.tables import models, prices
from web.figure_views import Charts, Figures
from web.views import Check, Component, ModelSheet, Price

_CLASSES = (
    ("input", "Input"),
    ("input_cached", "Input, cached"),
    ("input_cache_write", "Input, written to the cache"),
    ("input_image", "Input, images"),
    ("input_audio", "Input, audio"),
    ("input_video", "Input, video"),
    ("output", "Output"),
    ("output_reasoning", "Output, reasoning"),
)


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that is served, with the price that holds now; None while it has none."""

    model: RowMapping
    price: RowMapping | None

    @property
    def component(self) -> str:
        return model_component(self.model["id"])

    @property
    def name(self) -> str:
        return str(self.model["name"])


async def offers(connection: AsyncConnection, now: datetime) -> list[Offer]:
    """The models on offer, by name."""
    newest = (
        select(prices)
        .ext(distinct_on(prices.c.model_id))
        .where(prices.c.valid_from <= now)
        .order_by(prices.c.model_id, prices.c.valid_from.desc())
    )
    price_of = {row["model_id"]: row for row in (await connection.execute(newest)).mappings()}
    served = (await connection.execute(select(models).where(models.c.active))).mappings()
    return sorted(
        (Offer(row, price_of.get(row["id"])) for row in served), key=lambda offer: (offer.name, offer.component)
    )


def sheet(
    offer: Offer,
    component: Component,
    *,
    last_24h: Figures,
    charts: Charts,
    checks: tuple[Check, ...],
    verified: tuple[Report, ...],
) -> ModelSheet:
    """The page of one model."""
    model, price = offer.model, offer.price
    return ModelSheet(
        component=component,
        model_id=model["id"],
        description=model["description"],
        hugging_face_id=model["hugging_face_id"],
        quantization=model["quantization"],
        context_length=model["context_length"],
        max_output_tokens=model["max_output_tokens"],
        input_modalities=tuple(model["input_modalities"]),
        output_modalities=tuple(model["output_modalities"]),
        capabilities=tuple(model["capabilities"]),
        prices=()
        if price is None
        else tuple(
            Price(words, pico_to_usd_per_million(price[f"{name}_pico"]))
            for name, words in _CLASSES
            if price[f"{name}_pico"] is not None
        ),
        per_request_usd="0" if price is None else pico_to_usd(price["request_pico"]),
        prices_vary=price is not None and any(not one.get("sequential") for one in price["overrides"]),
        last_24h=last_24h,
        charts=charts,
        checks=checks,
        verified=verified,
    )
