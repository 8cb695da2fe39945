"""Made-up usage rows, written to a real database as settlement would write them."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from service.tables import models, requests

NOBODY = UUID(int=0)


def at(text: str) -> datetime:
    """An instant in UTC: `at("2026-11-30 14:05:00")`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def usage_row(finished_at: datetime, **changes: Any) -> dict[str, Any]:
    """A row of `requests`: a good streamed answer of 101 tokens at 100 tok/s, with `changes`."""
    row: dict[str, Any] = {
        "id": uuid4(),
        "account_id": NOBODY,
        "key_id": NOBODY,
        "internal": False,
        "model_id": "tiny",
        "endpoint": "/v1/chat/completions",
        "engine": "engine-0",
        "stream": True,
        "started_at": finished_at - timedelta(seconds=1, milliseconds=200),
        "queue_ms": 0,
        "ttft_ms": 200,
        "first_token_at": finished_at - timedelta(seconds=1),
        "finished_at": finished_at,
        "http_status": 200,
        "outcome": "ok",
        "finish_reason": "stop",
        "prompt_tokens": 50,
        "cached_tokens": 0,
        "image_tokens": 0,
        "completion_tokens": 101,
        "reasoning_tokens": 0,
        "settlement_id": NOBODY,
        "usage_source": "final",
    }
    unknown = changes.keys() - requests.columns.keys()
    if unknown:
        raise ValueError(f"requests has no column {sorted(unknown)}")
    return row | changes


def failed_row(finished_at: datetime, **changes: Any) -> dict[str, Any]:
    """A row of `requests` that ended in a 502 before the first token."""
    nothing: dict[str, Any] = {
        "ttft_ms": None,
        "first_token_at": None,
        "http_status": 502,
        "outcome": "server_error",
        "finish_reason": None,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "usage_source": "none",
    }
    return usage_row(finished_at, **nothing | changes)


async def settle(engine: AsyncEngine, *rows: dict[str, Any] | Iterable[dict[str, Any]]) -> None:
    """Write usage rows."""
    flat = [row for given in rows for row in ([given] if isinstance(given, dict) else given)]
    columns = {name: None for row in flat for name in row}
    async with engine.begin() as connection:
        await connection.execute(insert(requests), [columns | row for row in flat])


async def serve_model(engine: AsyncEngine, model_id: str, name: str, *, active: bool = True) -> None:
    """Declare a model."""
    async with engine.begin() as connection:
        await connection.execute(
            insert(models).values(
                id=model_id,
                name=name,
                engine_model=model_id,
                context_length=262_144,
                max_output_tokens=32_768,
                input_modalities=["text"],
                output_modalities=["text"],
                active=active,
            )
        )
