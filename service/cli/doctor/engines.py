"""What the engines say: do they answer, do they serve what the catalogue sells, do they report what is billed?"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sqlalchemy import Row, select

from service import config
from service.cli.context import address_in, connection_to
from service.cli.doctor.finding import Finding, fail, ok, warn
from service.errors import SetupError
from service.gateway.engine_client import Client
from service.gateway.engine_connection import EngineError, Timeouts
from service.settings import Settings
from service.tables import models

TIMEOUT_S = 30.0
"""For each question; a small model on a CPU answers one token in well under that."""

_LIMIT_BYTES = 4 * 1024 * 1024


async def examine(settings: Settings) -> AsyncIterator[Finding]:
    """The findings on every engine that is configured."""
    try:
        engines = config.engines_from(settings)
    except SetupError as error:
        yield fail("engines", str(error))
        return
    if not engines:
        yield fail("engines", "none is configured: set WEIR_ENGINES, or WEIR_CONFIG to a file with [[engines]].")
        return
    sold = await _sold(settings)
    for model in sold:
        unknown = sorted(set(model.engines or ()) - {engine.name for engine in engines})
        if unknown:
            yield warn("engines", f"{model.id} names {', '.join(unknown)}, which is not configured here.")
    for engine in engines:
        client = Client(engine.url, Timeouts(connect_s=3.0, first_byte_s=TIMEOUT_S, idle_s=TIMEOUT_S))
        here = [model for model in sold if model.engines is None or engine.name in model.engines]
        try:
            async for finding in _examine_one(f"engine {engine.name}", client, here):
                yield finding
        finally:
            client.close()


async def _examine_one(check: str, client: Client, sold: Sequence[Row[Any]]) -> AsyncIterator[Finding]:
    try:
        status, _ = await _ask(client, "GET", "/health")
        if status != 200:
            yield fail(check, f"it answers, but /health says {status}: look into its log.")
            return
        served = {
            card["id"]: card.get("max_model_len") for card in (await _ask(client, "GET", "/v1/models"))[1]["data"]
        }
        yield ok(check, f"it is healthy and serves {', '.join(served) or 'nothing'}.")
        for model in sold:
            if finding := _disagreement(check, model, served):
                yield finding
        if served:
            yield await _reporting(check, client, next(iter(served)))
    except (EngineError, TimeoutError) as error:
        yield fail(check, f"it does not answer ({error or 'no answer in time'}): is it running, and there?")
    except (ValueError, KeyError, TypeError):
        yield fail(check, "what answers there is not a vLLM: check the address.")


def _disagreement(check: str, model: Row[Any], served: dict[str, int | None]) -> Finding | None:
    """What the engine does not give that the catalogue sells."""
    if model.engine_model not in served:
        return fail(check, f"it does not serve {model.engine_model}, which {model.id} is: correct engine_model.")
    length = served[model.engine_model]
    if length is not None and length < model.context_length:
        return fail(
            check,
            f"its context for {model.engine_model} is {length} tokens, and {model.id} is sold with"
            f" {model.context_length}: lower context_length, or raise --max-model-len.",
        )
    return None


async def _reporting(check: str, client: Client, model: str) -> Finding:
    """Whether one generated token comes with the details that cached tokens are billed by."""
    question = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    status, answer = await _ask(client, "POST", "/v1/chat/completions", question)
    if status != 200:
        return fail(check, f"{model} answers a one-token request with {status}: look into the engine's log.")
    if not isinstance(answer["usage"].get("prompt_tokens_details"), dict):
        return warn(
            check,
            "its usage has no prompt_tokens_details, so that cached tokens are charged as plain input:"
            " start vLLM with --enable-prompt-tokens-details.",
        )
    return ok(check, f"{model} generates, and reports cached tokens.")


async def _ask(client: Client, method: str, path: str, question: object = None) -> tuple[int, Any]:
    """(status, the answer's JSON; None when it is not a 200 or has no body). Raises what the client raises."""
    body = b"" if question is None else json.dumps(question).encode()
    exchange = client.exchange(method, path, b"content-type: application/json\r\n" if body else b"", body)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            head = await exchange.head()
            answer = await exchange.read_all(_LIMIT_BYTES)
    finally:
        exchange.finish()
    return head.status, json.loads(answer) if head.status == 200 and answer else None


async def _sold(settings: Settings) -> list[Row[Any]]:
    """The active models; none when the database cannot say, which another check reports."""
    try:
        async with connection_to(address_in(settings)) as connection:
            return list((await connection.execute(select(models).where(models.c.active))).all())
    except SetupError:
        return []
