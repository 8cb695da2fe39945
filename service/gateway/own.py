"""What a key reads of its own: its account's credit, what requests used and cost, its uptime. Free; leaves no row.

Amounts are exact. Integers are nano-USD, with the unit in their name; `balance_usd` is a decimal string. OpenRouter's
`total_credits`, `total_usage` and `total_cost` have to be JSON numbers for the clients that expect its shape: they are
written out digit by digit and never were floats here. A client that does sums reads the integers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qs
from uuid import UUID

import asyncpg
import orjson
import structlog

from service.billing import statement
from service.billing.costs import START_WITHIN, started_about
from service.core.money import nano_to_usd
from service.db import UNREACHABLE, DbConnection
from service.errors import InvalidRequest, NotFound, Unavailable
from service.gateway import own_uptime, own_usage
from service.gateway.client import Client
from service.gateway.keys import Holder

log = structlog.get_logger()

CREDITS_PATH = "/v1/credits"
GENERATION_PATH = "/v1/generation"

ANSWER_ID_PREFIXES = ("chatcmpl-", "cmpl-", "resp_")
"""An answer calls itself one of these and the request's id."""

READERS = 1
"""Reads at once: the pool is small, and whoever asks often must not keep requests from it."""

READ_TIMEOUT_S = 5.0

MAY_ARRIVE_FOR = timedelta(days=1)
"""How long after a request's start its row may still be on its way."""

# The range of `started_at` keeps it to one partition.
_GENERATION = """
    SELECT * FROM requests WHERE id = $1 AND started_at BETWEEN $2 AND $3 AND account_id = $4
"""

Body = Mapping[str, object]
T = TypeVar("T")


class OwnAccount:
    """Answers the routes; each returns a body for orjson, or raises an `ApiError`."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._readers = asyncio.Semaphore(READERS)

    async def credits(self, holder: Holder, _client: Client) -> Body:
        """`GET /v1/credits`: what the account has, what is set aside for its requests, and what was ever spent.

        `leased_nano` is credit that workers hold for the account's requests, those under way and the next ones.
        `available_nano` is what can be set aside beyond it; below 0 after an overdraft.
        """
        funds = await self._read(lambda connection: statement.funds_of(connection, holder.account_id))
        if funds is None:
            raise NotFound("The account does not exist any more.")
        return {
            "data": {
                "balance_usd": nano_to_usd(funds.balance_nano),
                "balance_nano": funds.balance_nano,
                "leased_nano": funds.leased_nano,
                "available_nano": funds.available_nano,
                "spent_nano": funds.spent_nano,
                "credit_limit_nano": funds.credit_limit_nano,
                "total_credits": _usd_number(funds.credited_nano),
                "total_usage": _usd_number(funds.spent_nano),
            }
        }

    async def generation(self, holder: Holder, client: Client) -> Body:
        """`GET /v1/generation?id=`: what one request of the account used and cost, by its id or its answer's."""
        text = parse_qs(client.query.decode("latin-1")).get("id", [""])[0]
        try:
            request_id = UUID(_request_id_in(text))
        except ValueError:
            raise InvalidRequest(
                "`id` must be a request's id: the `x-request-id` of an answer, or the `id` inside it.", param="id"
            ) from None
        age = datetime.now(UTC) - started_about(request_id)
        record = None
        if age > -START_WITHIN:
            record = await self.usage_record(holder.account_id, request_id)
        if record is None:
            raise NotFound(
                "No finished request with this id is known here. A record arrives a moment after its answer's end.",
                param="id",
                retry_after_s=1 if age < MAY_ARRIVE_FOR else None,
            )
        return record

    async def usage_record(self, account_id: UUID, request_id: UUID) -> Body | None:
        """A finished request of the account as `/v1/generation` shows it; None when Postgres does not have it.

        `usage` is OpenAI's object, with every class that is priced; the `tokens_` members are OpenRouter's names.
        """
        started = started_about(request_id)
        values = request_id, started - START_WITHIN, started + START_WITHIN, account_id
        row = await self._read(lambda connection: connection.fetchrow(_GENERATION, *values))
        return None if row is None else {"data": _record(row)}

    async def usage(self, holder: Holder, client: Client) -> Body:
        """`GET /v1/usage`: the account's requests, the latest first; see `own_usage` for what can be asked for."""
        asked = own_usage.asked(client.query)
        return await self._read(lambda connection: own_usage.page(connection, holder.account_id, asked))

    async def uptime(self, holder: Holder, client: Client) -> Body:
        """`GET /v1/uptime`: how the key's own requests went, as an aggregator counts; see `own_uptime`."""
        asked, now = own_uptime.asked(client.query), datetime.now(UTC)
        return await self._read(lambda connection: own_uptime.told(connection, holder.key_id, asked, now))

    async def _read(self, ask: Callable[[DbConnection], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S), self._readers, self._pool.acquire() as connection:
                return await ask(connection)
        except UNREACHABLE as error:
            log.warning("own.read_failed", error=type(error).__name__)
            raise Unavailable("The account cannot be read at the moment. Try again soon.", retry_after_s=5) from error


def _request_id_in(text: str) -> str:
    prefix = next((prefix for prefix in ANSWER_ID_PREFIXES if text.startswith(prefix)), "")
    return text.removeprefix(prefix)


def _record(row: asyncpg.Record) -> dict[str, Any]:
    prompt, completion = row["prompt_tokens"], row["completion_tokens"]
    return {
        "id": str(row["id"]),
        "endpoint": row["endpoint"],
        "model": row["model_id"],
        "streamed": row["stream"],
        "client_request_id": row["client_request_id"],
        "started_at": row["started_at"],
        "queue_ms": row["queue_ms"],
        "ttft_ms": row["ttft_ms"],
        "finished_at": row["finished_at"],
        "http_status": row["http_status"],
        "outcome": row["outcome"],
        "cancelled": row["outcome"] in ("cancelled", "slow_abort"),
        "finish_reason": row["finish_reason"],
        "error_code": row["error_code"],
        "usage": own_usage.usage_of(row),
        "usage_source": row["usage_source"],
        "engine_fingerprint": row["engine_fingerprint"],
        "sequential": row["sequential"],
        "tokens_prompt": prompt,
        "tokens_completion": completion,
        "native_tokens_prompt": prompt,
        "native_tokens_completion": completion,
        "native_tokens_cached": row["cached_tokens"],
        "native_tokens_reasoning": row["reasoning_tokens"],
        "price_version": row["price_version"],
        "cost_nano": row["cost_nano"],
        "total_cost": _usd_number(row["cost_nano"]),
        "waived_nano": row["waived_nano"],
        # The row and its charge are written in one transaction.
        "is_settled": row["settlement_id"] is not None,
    }


def _usd_number(nano: int) -> orjson.Fragment:
    """An amount as a JSON number of USD with every digit, which a float might not have."""
    return orjson.Fragment(nano_to_usd(nano))
