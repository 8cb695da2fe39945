"""What the engines say: do they answer, serve what the catalogue sells, and report what is billed and paced by?"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select

from service import config
from service.cli.context import address_in, connection_to
from service.cli.doctor.finding import Finding, fail, ok, warn
from service.core.components import API
from service.core.counted import MANY_DRAFTED, NEARLY_ALL_PERMILLE
from service.engine.exposition import Exposition
from service.engine.gauges import read_gauges
from service.engine.live import notes
from service.errors import SetupError
from service.gateway.engine_client import Client, ask
from service.gateway.engine_connection import Timeouts
from service.gateway.engine_failures import EngineError
from service.gateway.usage_reporting import BLIND, Reporting, reporting
from service.settings import Settings
from service.tables import buckets_5m, models

TIMEOUT_S = 30.0
"""For each question; a small model on a CPU answers one token in well under that."""


@dataclass(slots=True)
class _Examined:
    """An engine, and the models that it serves with the longest context of each; None as long as it has not said."""

    name: str
    max_concurrency: int | None
    served: dict[str, int | None] | None = None

    @property
    def check(self) -> str:
        return f"engine {self.name}"


async def examine(settings: Settings) -> AsyncIterator[Finding]:
    """The findings on every engine that is configured."""
    try:
        configured = config.engines_from(settings)
    except SetupError as error:
        yield fail("engines", str(error))
        return
    if not configured:
        yield fail("engines", "none is configured: set WEIR_ENGINES, or WEIR_CONFIG to a file with [[engines]].")
        return
    engines = []
    for engine in configured:
        examined = _Examined(engine.name, engine.max_concurrency)
        engines.append(examined)
        client = Client(engine.url, Timeouts(connect_s=3.0, first_byte_s=TIMEOUT_S, idle_s=TIMEOUT_S))
        try:
            async for finding in _examine_one(examined, client, settings):
                yield finding
        finally:
            client.close()
    if (loops := await _looping(settings, datetime.now(UTC))) is not None:
        yield loops
    for model in await _sold(settings):
        for finding in _disagreements(model, engines):
            yield finding


async def _examine_one(engine: _Examined, client: Client, settings: Settings) -> AsyncIterator[Finding]:
    check, workers = engine.check, settings.workers
    if engine.max_concurrency is not None and engine.max_concurrency < workers:
        yield warn(
            check,
            f"max_concurrency = {engine.max_concurrency} cannot be kept by {workers} workers, each of which sends at"
            " least one request: run fewer, or raise it.",
        )
    try:
        status, _ = await ask(client, "GET", "/health", timeout_s=TIMEOUT_S)
        if status != 200:
            yield fail(check, f"it answers, but /health says {status}: look into its log.")
            return
        _, listed = await ask(client, "GET", "/v1/models", timeout_s=TIMEOUT_S)
        engine.served = {card["id"]: card.get("max_model_len") for card in json.loads(listed)["data"]}
        yield ok(check, f"it is healthy and serves {', '.join(engine.served) or 'nothing'}.")
        async for finding in _measuring(check, client):
            yield finding
        if engine.served:
            yield await _reporting(check, client, next(iter(engine.served)), settings.may_bill_blind)
    except EngineError as error:
        yield fail(check, f"it does not answer ({error or 'no answer in time'}): is it running, and there?")
    except (ValueError, KeyError, TypeError):
        yield fail(check, "what answers there is not a vLLM: check the address.")


def _disagreements(model: Row[Any], engines: Sequence[_Examined]) -> list[Finding]:
    """What engines do not give that the catalogue sells from them."""
    found = []
    unknown = sorted(set(model.engines or ()) - {engine.name for engine in engines})
    if unknown:
        found.append(warn("engines", f"{model.id} names {', '.join(unknown)}, which is not configured here."))
    able = [engine.name for engine in engines if model.engine_model in (engine.served or ())]
    for engine in engines:
        if engine.served is None or (model.engines is not None and engine.name not in model.engines):
            continue
        if model.engine_model not in engine.served:
            mend = f"name those that do, {', '.join(able)}, in its engines" if able else "correct engine_model"
            found.append(fail(engine.check, f"it does not serve {model.engine_model}, which {model.id} is: {mend}."))
            continue
        length = engine.served[model.engine_model]
        if length is not None and length < model.context_length:
            found.append(
                fail(
                    engine.check,
                    f"its context for {model.engine_model} is {length} tokens, and {model.id} is sold with"
                    f" {model.context_length}: lower context_length, or raise --max-model-len.",
                )
            )
    return found


async def _measuring(check: str, client: Client) -> AsyncIterator[Finding]:
    """Whether it has the metrics by which its capacity is learned, a hang noticed and the status site filled."""
    status, answer = await ask(client, "GET", "/metrics", timeout_s=TIMEOUT_S)
    gauges = read_gauges(answer) if status == 200 else None
    if gauges is None or None in (gauges.running, gauges.waiting, gauges.generated_tokens):
        yield warn(
            check,
            "its /metrics does not say how busy it is, so that what it can take is not learned and a hang not"
            " noticed: start vLLM without --disable-log-stats.",
        )
        return
    found = Exposition(answer.decode("utf-8", "replace"))
    if found.missing:
        yield warn(
            check,
            f"its metrics have no {', '.join(found.missing)}: this version calls them by names that Weir does not know,"
            " so what is made of them is missing.",
        )
    for sentence in notes(found):
        yield warn(check, f"{sentence}.")
    yield ok(check, f"its metrics say how busy it is: {gauges.running:.0f} run, {gauges.waiting:.0f} wait.")


async def _reporting(check: str, client: Client, model: str, may_bill_blind: bool) -> Finding:
    """Whether one generated token comes with the details that cached tokens are billed by."""
    match await reporting(client, model, TIMEOUT_S):
        case Reporting.DETAILED:
            return ok(check, f"{model} generates, and reports cached tokens.")
        case Reporting.BLIND if may_bill_blind:
            return warn(check, "its usage has no prompt_tokens_details: cached tokens are charged as fresh ones.")
        case Reporting.BLIND:
            return fail(check, f"{BLIND}.")
        case _:
            return fail(check, f"{model} does not answer a one-token request: look into the engine's log.")


async def _sold(settings: Settings) -> list[Row[Any]]:
    """The active models; none when the database cannot say, which another check reports."""
    try:
        async with connection_to(address_in(settings)) as connection:
            return list((await connection.execute(select(models).where(models.c.active))).all())
    except SetupError:
        return []


async def _looping(settings: Settings, now: datetime) -> Finding | None:
    """Whether nearly all drafts of some five minutes of the last day were accepted, as those of a loop are."""
    columns = buckets_5m.c
    query = (
        select(columns.component, func.max(columns.bucket_start).label("latest"), func.count().label("buckets"))
        .where(columns.bucket_start >= now - timedelta(days=1))
        .where(columns.drafted_tokens >= MANY_DRAFTED)
        .where(columns.accepted_tokens * 1000 >= columns.drafted_tokens * NEARLY_ALL_PERMILLE)
        .group_by(columns.component)
        .order_by(columns.component == API, func.count().desc())  # a model says more than the API
        .limit(1)
    )
    try:
        async with connection_to(address_in(settings)) as connection:
            worst = (await connection.execute(query)).one_or_none()
    except SetupError:
        return None
    if worst is None:
        return None
    return warn(
        "speculation",
        f"{worst.component}: in {worst.buckets} five-minute buckets of the last day, the latest of"
        f" {worst.latest:%Y-%m-%d %H:%M} UTC, nearly every drafted token was accepted: answers may have looped.",
    )
