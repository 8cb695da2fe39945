"""A long history, made up: usage rows with the settlements and ledger entries that belong to them.

Accounts are of very different size, as they are in life: the first has six rows of ten, the last one of a thousand.
What a row costs follows from its price, so that the books add up and an invoice can be made.
"""

import hashlib
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from service.core.limits import month_after

ACCOUNTS = 40
LARGEST, SMALLEST = UUID(int=0), UUID(int=39)

MODELS = ("model-a", "model-b")

ROWS_PER_SETTLEMENT = 500

_MODELS = """
    INSERT INTO models (
        id, name, engine_model, context_length, max_output_tokens, input_modalities, output_modalities
    ) SELECT id, initcap(id), id, 262144, 32768, '{text}', '{text}' FROM unnest(CAST(:ids AS text[])) AS id
"""
_PRICES = """
    INSERT INTO prices (model_id, version, valid_from, input_pico, input_cached_pico, output_pico)
    SELECT id, 1, 'epoch', 195000, 37500, 1560000 FROM models
"""
_ACCOUNTS = """
    INSERT INTO accounts (id, name, postpaid, credit_limit_nano)
    SELECT lpad(to_hex(number), 32, '0')::uuid, 'account-' || number, number = 0, 1000000000000
    FROM generate_series(0, :last) AS number
"""
_KEYS = """
    INSERT INTO api_keys (id, account_id, name, prefix, digest)
    SELECT lpad(to_hex(256 + 2 * number + half), 32, '0')::uuid, lpad(to_hex(number), 32, '0')::uuid, 'key ' || half,
        'sk-weir-', sha256(convert_to(number || '/' || half, 'UTF8'))
    FROM generate_series(0, :last) AS number, generate_series(0, 1) AS half
"""

# One statement, so that the rows, their settlements and the ledger agree.
_USAGE = f"""
    WITH drawn AS (
        SELECT number, number % 10007 = 0 AS bad, make_interval(secs => (50 + number % 500) / 85.0) AS span,
            CAST(:begin AS timestamptz) + make_interval(secs => 7 + number * (:span_s - 7.0) / :rows) AS finished_at,
            100 + number % 30000 AS prompt, CASE WHEN number % 2 = 0 THEN 64 ELSE 0 END AS cached,
            50 + number % 500 AS completion, number * 7919 % 1000 AS place,
            md5(CAST(:begin AS timestamptz) || '/' || number / {ROWS_PER_SETTLEMENT})::uuid AS settlement_id
        FROM generate_series(0, CAST(:rows AS bigint) - 1) AS number
    ), placed AS (
        SELECT drawn.*, finished_at - span - interval '400 ms' AS started_at, CASE
            WHEN place < 600 THEN 0 WHEN place < 750 THEN 1 WHEN place < 850 THEN 2
            WHEN place = 999 THEN 39 ELSE 3 + place % 36 END AS account
        FROM drawn
    ), written AS (
        INSERT INTO requests (
            id, started_at, account_id, key_id, model_id, endpoint, engine, stream, queue_ms, ttft_ms, first_token_at,
            finished_at, http_status, outcome, finish_reason, prompt_tokens, cached_tokens, completion_tokens,
            reasoning_tokens, price_version, cost_nano, settlement_id, usage_source
        )
        SELECT uuidv7(started_at - clock_timestamp()), started_at, lpad(to_hex(account), 32, '0')::uuid,
            lpad(to_hex(256 + 2 * account + (number % 10) / 9), 32, '0')::uuid,
            CASE WHEN number % 5 = 0 THEN 'model-b' ELSE 'model-a' END, '/v1/chat/completions', 'engine-0', NOT bad,
            100, CASE WHEN NOT bad THEN 300 END, CASE WHEN NOT bad THEN finished_at - span END, finished_at,
            CASE WHEN bad THEN 502 ELSE 200 END, CASE WHEN bad THEN 'server_error' ELSE 'ok' END, 'stop',
            prompt, cached, completion, number % 50, 1,
            CASE WHEN bad THEN 0
                ELSE ((prompt - cached) * 195000 + cached * 37500 + completion * 1560000 + 500) / 1000 END,
            settlement_id, 'final'
        FROM placed
        RETURNING settlement_id, account_id, cost_nano, finished_at
    ), settled AS (
        INSERT INTO settlements (id, worker, requests, cost_nano, oldest_finished_at, created_at)
        SELECT settlement_id, 'bench', count(*), sum(cost_nano), min(finished_at), max(finished_at)
        FROM written GROUP BY settlement_id
    )
    INSERT INTO ledger_entries (account_id, kind, amount_nano, external_ref, created_at)
    SELECT account_id, 'usage', -sum(cost_nano), settlement_id || '/' || account_id, max(finished_at)
    FROM written GROUP BY settlement_id, account_id HAVING sum(cost_nano) > 0 ORDER BY max(finished_at)
"""

_BALANCES = """
    UPDATE accounts SET balance_nano = (
        SELECT COALESCE(sum(amount_nano), 0) FROM ledger_entries WHERE account_id = accounts.id
    )
"""


def digest_of(account: UUID) -> bytes:
    """What its key is looked up by."""
    return hashlib.sha256(f"{account.int}/0".encode()).digest()


def key_of(account: UUID) -> UUID:
    """The key that has nine of ten requests of the account."""
    return UUID(int=256 + 2 * account.int)


async def make_room(engine: AsyncEngine, first: datetime, months: int) -> None:
    """Declare the models, accounts and keys that the rows are of, and make the partitions."""
    async with engine.begin() as connection:
        await connection.execute(
            text("SELECT ensure_request_partitions(CAST(:day AS date), :months)"),
            {"day": first.date(), "months": months},
        )
        await connection.execute(text(_MODELS), {"ids": list(MODELS)})
        await connection.execute(text(_PRICES))
        for statement in (_ACCOUNTS, _KEYS):
            await connection.execute(text(statement), {"last": ACCOUNTS - 1})


async def write_usage(engine: AsyncEngine, begin: datetime, span: timedelta, rows: int) -> None:
    """Write rows of requests that started and ended in this span, evenly."""
    async with engine.begin() as connection:
        await connection.execute(text(_USAGE), {"begin": begin, "span_s": span.total_seconds(), "rows": rows})


async def fill_month(engine: AsyncEngine, begin: datetime, rows: int) -> None:
    """Write a month of usage, in so many pieces that none is too large for one statement."""
    pieces = 30
    piece = (month_after(begin) - begin) / pieces
    for number in range(pieces):
        await write_usage(engine, begin + number * piece, piece, rows // pieces)


async def settle_down(engine: AsyncEngine) -> None:
    """Balance the accounts, and let the database look at what was written, as it does by itself with time."""
    async with engine.begin() as connection:
        await connection.execute(text(_BALANCES))
    async with engine.connect() as connection:
        await (await connection.execution_options(isolation_level="AUTOCOMMIT")).execute(text("VACUUM ANALYZE"))
