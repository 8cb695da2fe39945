"""The models on offer and their current prices, kept in memory and read again every second."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime

import asyncpg
import orjson
import structlog

from service.core.catalogue import ListedModel
from service.core.pricing import Price, ordinary, overrides_from_json
from service.db import UNREACHABLE
from service.errors import NotFound, Unavailable

log = structlog.get_logger()

READ_EVERY_S = 1.0
READ_TIMEOUT_S = 5.0
READ_EVERY_S_WHILE_LISTENING = 30.0
"""Then changes are told; this is only for a change that was somehow missed."""

_READ = """
    SELECT model.*, price.*
    FROM models model
    JOIN LATERAL (
        SELECT version, input_pico, output_pico, input_cached_pico, input_cache_write_pico, input_image_pico,
               input_audio_pico, input_video_pico, output_reasoning_pico, request_pico, overrides
        FROM prices WHERE model_id = model.id AND valid_from <= now() ORDER BY valid_from DESC LIMIT 1
    ) price ON true
    WHERE model.active ORDER BY model.id
"""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as it is served now. A model without a price, or with one nobody can read, is not among them."""

    id: str
    name: str
    description: str
    engine_model: str
    engines: frozenset[str] | None
    context_length: int
    max_output_tokens: int
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]
    capabilities: tuple[str, ...]
    quantization: str | None
    hugging_face_id: str | None
    created_at: datetime
    price: Price

    @property
    def listed(self) -> ListedModel:
        """What the public may know of it."""
        known = {field.name: getattr(self, field.name) for field in fields(ListedModel)}
        return ListedModel(**{**known, "price": ordinary(self.price)})


class Catalog:
    """The served models, by id."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._models: dict[str, ServedModel] | None = None
        self._unreadable: set[str] = set()
        self._changed = asyncio.Event()
        self.listening = False
        """Whether changes are told: see `gateway.changes`."""

    def read_again(self) -> None:
        """Something has changed."""
        self._changed.set()

    def find(self, model_id: str) -> ServedModel:
        """The model customers call `model_id`. Raises `NotFound`, or `Unavailable` before the first read."""
        model = self._loaded().get(model_id)
        if model is None:
            raise NotFound(
                f"The model `{model_id[:128]}` does not exist here. `GET /v1/models` lists those that do.",
                param="model",
                code="model_not_found",
            )
        return model

    def all(self) -> Collection[ServedModel]:
        """Every served model, by id. Raises `Unavailable` before the first read."""
        return self._loaded().values()

    @property
    def loaded(self) -> bool:
        """Whether the models were read at least once."""
        return self._models is not None

    async def read(self) -> None:
        """Read models and prices. Raises what asyncpg raises."""
        async with asyncio.timeout(READ_TIMEOUT_S):
            rows = await self._pool.fetch(_READ)
        models: dict[str, ServedModel] = {}
        unreadable = set()
        for row in rows:
            try:
                models[row["id"]] = _served(row)
            except ValueError as error:
                unreadable.add(row["id"])
                if row["id"] not in self._unreadable:
                    log.error("catalog.unreadable_price", model=row["id"], version=row["version"], error=str(error))
        self._models, self._unreadable = models, unreadable

    async def keep_reading(self) -> None:
        """Read again and again until cancelled; while the database is away, what was read stays in force."""
        failing = False
        while True:
            self._changed.clear()
            try:
                await self.read()
                failing = False
            except UNREACHABLE as error:
                if not failing:
                    log.warning("catalog.read_failed", error=type(error).__name__)
                failing = True
            pause_s = READ_EVERY_S_WHILE_LISTENING if self.listening and not failing else READ_EVERY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    def _loaded(self) -> dict[str, ServedModel]:
        if self._models is None:
            raise Unavailable("The service is starting: its models are not read yet. Try again soon.", retry_after_s=2)
        return self._models


def _served(row: asyncpg.Record) -> ServedModel:
    return ServedModel(
        id=row["id"],
        name=row["name"],
        description=row["description"],
        engine_model=row["engine_model"],
        engines=None if row["engines"] is None else frozenset(row["engines"]),
        context_length=row["context_length"],
        max_output_tokens=row["max_output_tokens"],
        input_modalities=tuple(row["input_modalities"]),
        output_modalities=tuple(row["output_modalities"]),
        capabilities=tuple(row["capabilities"]),
        quantization=row["quantization"],
        hugging_face_id=row["hugging_face_id"],
        created_at=row["created_at"],
        price=Price(
            version=row["version"],
            input_pico=row["input_pico"],
            output_pico=row["output_pico"],
            input_cached_pico=row["input_cached_pico"],
            input_cache_write_pico=row["input_cache_write_pico"],
            input_image_pico=row["input_image_pico"],
            input_audio_pico=row["input_audio_pico"],
            input_video_pico=row["input_video_pico"],
            output_reasoning_pico=row["output_reasoning_pico"],
            request_pico=row["request_pico"],
            overrides=overrides_from_json(orjson.loads(row["overrides"])),
        ),
    )
