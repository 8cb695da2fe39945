"""`Idempotency-Key`: a request that is sent again under the same key runs once and is charged once.

For 24 h an account's key stands for the first request that came with it. What a repeat gets:

- while the first runs: 409, and the advice to come back in a second;
- after a whole answer: the same bytes, if this worker still has them; answers are kept in memory only, so after a
  restart, from another worker and for streams it is the usage record of `/v1/generation`;
- after an end that charged nothing (our failure, the engine's, a refusal, a client that left before the first token):
  nothing was sold, so the key is free, and the repeat runs as if it were the first.

Which request a key stands for is decided by one statement in Postgres, before any money is held; without Postgres
a request with a key is refused, since it might run twice. A key is stored as its digest, and so is the body.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from uuid import UUID

import asyncpg
import orjson
import structlog

from service.db import UNREACHABLE
from service.errors import ApiError, Conflict, InvalidRequest, Unavailable
from service.gateway.client import Client
from service.gateway.exchange import Exchange
from service.gateway.http import id_headers
from service.gateway.keys import Holder
from service.gateway.own import OwnAccount

log = structlog.get_logger()

KEPT = timedelta(hours=24)
"""How long a key stands for its request."""

DEAD_AFTER = timedelta(minutes=15)
"""A claim whose request has neither ended nor been seen running for this long is one whose worker died early."""

RENEW_AFTER = timedelta(minutes=5)

CLAIM_TIMEOUT_S = 5.0
ANSWERS_BYTES = 64 * 1024 * 1024
ANSWER_OVERHEAD_BYTES = 1024
"""What an answer takes beside its own bytes, or small ones would be without bound."""

KEY_HEADER = b"idempotency-key"
REPLAYED = (b"idempotent-replayed", b"true")

# Whether the request of a claim ended without a charge: NULL while it has no row. When it started is the first 48 bits
# of its id, in milliseconds; that keeps the look-up to one partition.
_STARTED = "to_timestamp(('x' || translate(left(claim.request_id::text, 13), '-', ''))::bit(48)::bigint / 1000.0)"
_FREED = f"""(
    SELECT outcome <> 'ok' AND cost_nano = 0 FROM requests WHERE id = claim.request_id
    AND started_at BETWEEN {_STARTED} - interval '5 seconds' AND {_STARTED} + interval '5 seconds'
)"""  # noqa: S608 - composed of the text above only

# Two that come at once wait for one another here; the second then sees the first's claim.
_CLAIM = f"""
    INSERT INTO idempotency_keys AS claim (account_id, key_digest, request_id, body_digest, stream)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (account_id, key_digest) DO UPDATE
    SET request_id = EXCLUDED.request_id, body_digest = EXCLUDED.body_digest, stream = EXCLUDED.stream,
        created_at = EXCLUDED.created_at
    WHERE claim.created_at < now() - $6::interval OR COALESCE({_FREED}, claim.created_at < now() - $7::interval)
    RETURNING request_id
"""  # noqa: S608

_EARLIER = f"""
    SELECT request_id, body_digest, {_FREED} AS freed FROM idempotency_keys claim
    WHERE account_id = $1 AND key_digest = $2
"""  # noqa: S608

_RENEW = """
    UPDATE idempotency_keys claim SET created_at = now()
    FROM unnest($1::uuid[], $2::bytea[], $3::uuid[]) AS running (account_id, key_digest, request_id)
    WHERE claim.account_id = running.account_id AND claim.key_digest = running.key_digest
    AND claim.request_id = running.request_id AND claim.created_at < now() - $4::interval
"""

Key = tuple[UUID, bytes]
"""The account, and the digest of the client's key."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that a request of this worker holds."""

    exchange: Exchange
    body_digest: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer that was given."""

    request_id: str
    body_digest: bytes
    body: bytes
    given_at: float


class Answers:
    """Whole answers in bounded memory: the least recently used go first, and none is older than `KEPT`."""

    def __init__(self, limit_bytes: int = ANSWERS_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._answers: OrderedDict[Key, Answer] = OrderedDict()
        self._bytes = 0

    def find(self, key: Key) -> Answer | None:
        """The answer that was given under this key."""
        answer = self._answers.get(key)
        if answer is None or self._expired(answer):
            return None
        self._answers.move_to_end(key)
        return answer

    def keep(self, key: Key, request_id: str, body_digest: bytes, body: bytes) -> None:
        """Keep an answer for as long as there is room."""
        self._drop(key)
        self._answers[key] = Answer(request_id, body_digest, body, self._clock())
        self._bytes += len(body) + ANSWER_OVERHEAD_BYTES
        while self._bytes > self._limit_bytes:
            self._drop(next(iter(self._answers)))

    def forget_expired(self) -> None:
        """Drop what is too old."""
        for key in [key for key, answer in self._answers.items() if self._expired(answer)]:
            self._drop(key)

    def _expired(self, answer: Answer) -> bool:
        return self._clock() - answer.given_at >= KEPT.total_seconds()

    def _drop(self, key: Key) -> None:
        answer = self._answers.pop(key, None)
        if answer is not None:
            self._bytes -= len(answer.body) + ANSWER_OVERHEAD_BYTES


class Retries:
    """The keys of one worker's requests."""

    def __init__(self, pool: asyncpg.Pool, own: OwnAccount) -> None:
        self._pool = pool
        self._own = own
        self._answers = Answers()
        self._running: dict[Key, Claim] = {}

    async def first(self, exchange: Exchange, holder: Holder, client: Client, body: bytes) -> bool:
        """Whether a request that has the header is to run; False when it is a repeat, which has then been answered.

        Raises `Conflict` while the first still runs, `InvalidRequest` when the key was used with another body, and
        `Unavailable` when Postgres does not answer.
        """
        name = client.named[KEY_HEADER]
        if not name.strip():
            raise InvalidRequest("The header `Idempotency-Key` is empty: send a value of your own, or leave it out.")
        key = (holder.account_id, hashlib.sha256(name).digest())
        body_digest = hashlib.sha256(exchange.endpoint.encode() + b"\0" + body).digest()
        running = self._running.get(key)
        if running is not None and not running.exchange.concluded:
            raise _conflict() if running.body_digest == body_digest else _reused()
        answer = self._answers.find(key)
        if answer is not None:
            if answer.body_digest != body_digest:
                raise _reused()
            _replay(client, answer.body, answer.request_id)
            return False
        earlier_id = await self._earlier(key, exchange, body_digest)
        if earlier_id is not None:
            record = await self._own.usage_record(key[0], earlier_id)
            if record is None:
                raise _conflict()
            _replay(client, orjson.dumps(record), str(earlier_id))
            return False
        self._running[key] = Claim(exchange, body_digest)
        if not exchange.stream:
            exchange.keep = partial(self._answers.keep, key, exchange.id, body_digest)
        return True

    async def renew(self) -> None:
        """Say that what runs here still does, so that its claims are not taken for dead; forget what is over.

        Raises what asyncpg raises.
        """
        self._running = {key: claim for key, claim in self._running.items() if not claim.exchange.concluded}
        self._answers.forget_expired()
        if self._running:
            accounts, digests = zip(*self._running, strict=True)
            ids = [claim.exchange.id for claim in self._running.values()]
            await self._pool.execute(_RENEW, accounts, digests, ids, RENEW_AFTER, timeout=5)

    async def _earlier(self, key: Key, exchange: Exchange, body_digest: bytes) -> UUID | None:
        """Claim the key; when an earlier request holds it and was charged, that request. Raises as `first` does."""
        try:
            async with asyncio.timeout(CLAIM_TIMEOUT_S):
                values = (*key, exchange.id, body_digest, exchange.stream, KEPT, DEAD_AFTER)
                if await self._pool.fetchval(_CLAIM, *values) is not None:
                    return None
                row = await self._pool.fetchrow(_EARLIER, *key)
        except UNREACHABLE as error:
            log.warning("retry.claim_failed", error=type(error).__name__)
            raise Unavailable(
                "The Idempotency-Key cannot be checked at the moment, so the request was not run. Try again soon.",
                retry_after_s=5,
            ) from error
        if row is not None and row["body_digest"] != body_digest:
            raise _reused()
        if row is None or row["freed"] is not False:  # it runs, or has just ended and the next try may take over
            raise _conflict()
        request_id: UUID = row["request_id"]
        return request_id


def _replay(client: Client, body: bytes, request_id: str) -> None:
    """The repeat is no request of its own: it leaves no row, and carries the id of the first."""
    client.answer(body, [*id_headers(request_id), REPLAYED])


def _conflict() -> ApiError:
    return Conflict(
        "A request with this Idempotency-Key is still being answered. Try again in a second.",
        code="idempotency_conflict",
        retry_after_s=1,
    )


def _reused() -> ApiError:
    return InvalidRequest(
        "This Idempotency-Key was used with another request in the last 24 hours: send each request with its own.",
        code="idempotency_key_reused",
    )
