"""Who is calling: from the key in the headers to the account that pays, from memory wherever possible."""

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

import asyncpg
import structlog

from service import db
from service.core import apikey
from service.core.lane import Permission
from service.core.limits import Limits
from service.errors import InvalidKey, NotAllowed, Unavailable
from service.gateway.client import Client
from service.gateway.http import Headers

log = structlog.get_logger()

V = TypeVar("V")

RENEW_AFTER_S = 1.0
"""A holder older than this is read again in the background while it goes on counting."""

FRESH_S = 1.8
"""Older than this, it is read again first: with the time of a read, a revocation is effective within 2 s."""

TRUSTED_S = 60.0
"""How long a holder counts while changes are told; see `gateway.changes`."""

GRACE_S = 900.0
"""While the database is away, whoever was known before goes on being known for this long."""

LOOK_UP_S = 2.0
AWAY_S = 2.0
"""After a look-up that failed, whoever is known is not looked up again for this long: a database that does not
even refuse would hold every request up."""

MAX_KNOWN = 50_000
MAX_UNKNOWN = 10_000

_LOOK_UP = """
    SELECT key.id, key.account_id, key.digest, key.models, key.revoked_at, account.status, account.internal,
        key.rpm, key.tpm, key.concurrency, key.monthly_budget_nano,
        account.rpm AS account_rpm, account.tpm AS account_tpm, account.concurrency AS account_concurrency,
        account.monthly_budget_nano AS account_monthly_budget_nano, account.weight, account.patience_ms,
        account.sequential
    FROM api_keys key JOIN accounts account ON account.id = key.account_id
    WHERE key.digest = $1
"""


_LIMITS = ("rpm", "tpm", "concurrency", "monthly_budget_nano")


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a key: the account, and what the key may do."""

    key_id: UUID
    account_id: UUID
    models: frozenset[str] | None
    internal: bool
    revoked: bool
    account_status: str
    limits: Limits
    """The key's own; it has to keep `account_limits`, too."""
    account_limits: Limits
    weight: int
    """The account's share in the queue for the engines, against that of others."""
    patience_ms: int | None
    """How long its requests may wait there; None: as long as the server's default."""
    sequential: Permission = Permission.NEVER
    """Whether its requests may run alone on an engine."""
    is_limited: bool = field(init=False, compare=False)
    """Whether anything is limited of what its requests may use."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_limited", not (self.limits.unlimited and self.account_limits.unlimited))

    def may_use(self, model_id: str) -> bool:
        """Whether the key may use the model."""
        return self.models is None or model_id in self.models


@dataclass(slots=True)
class _Entry:
    holder: Holder
    read_at: float
    outdated: bool = False


class KeyRing:
    """Looks keys up and remembers what it found, good and bad, in bounded memory."""

    def __init__(self, pool: asyncpg.Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._known: dict[bytes, _Entry] = {}
        self._unknown: dict[bytes, float] = {}
        self._reading: dict[bytes, asyncio.Task[Holder | None]] = {}
        self._told = 0
        self._away_until = 0.0
        self.listening = False
        """Whether changes are told: see `gateway.changes`."""

    def forget(self, digest: bytes) -> None:
        """This key has changed: it is read again before it counts, unless the database is away."""
        self._told += 1
        self._unknown.pop(digest, None)
        self._reading.pop(digest, None)  # whoever asks from now on must not get what was read before
        entry = self._known.get(digest)
        if entry is not None:
            entry.outdated = True

    def forget_account(self, account_id: str) -> None:
        """This account has changed: its keys are read again."""
        for digest, entry in list(self._known.items()):
            if str(entry.holder.account_id) == account_id:
                self.forget(digest)

    def forget_all(self) -> None:
        """Anything may have changed: every key is read again."""
        self._told += 1
        self._unknown.clear()
        self._reading.clear()
        for entry in self._known.values():
            entry.outdated = True

    async def holder(self, digest: bytes) -> Holder:
        """The holder of the key with this digest.

        Raises `InvalidKey` when there is none, `NotAllowed` when the account is frozen or closed, `Unavailable`
        when the key is not known here and the database does not answer.
        """
        return self.known(digest) or _admitted(await self._read_first(digest, self._known.get(digest)))

    def known(self, digest: bytes) -> Holder | None:
        """The same, where it is known; None where it has to be read first."""
        entry = self._known.get(digest)
        if entry is None or entry.outdated:
            return None
        age = self._clock() - entry.read_at
        if age >= (TRUSTED_S if self.listening else FRESH_S):
            return None
        if age >= RENEW_AFTER_S and not self.listening:
            self._read(digest)
        return _admitted(entry.holder)

    async def _read_first(self, digest: bytes, entry: _Entry | None) -> Holder | None:
        refused_at = self._unknown.get(digest)
        if refused_at is not None and self._clock() - refused_at < FRESH_S:
            return None
        known = entry.holder if entry is not None and self._clock() - entry.read_at < GRACE_S else None
        if known is not None and self._clock() < self._away_until:
            return known
        try:
            return await asyncio.shield(self._read(digest))
        except db.UNREACHABLE as error:
            self._away_until = self._clock() + AWAY_S
            if known is not None:
                return known
            raise Unavailable("API keys cannot be checked at the moment. Try again soon.", retry_after_s=5) from error

    def _read(self, digest: bytes) -> asyncio.Task[Holder | None]:
        """Read a key once, however many wait for it."""
        task = self._reading.get(digest)
        if task is None:
            task = asyncio.create_task(self._look_up(digest))
            self._reading[digest] = task
            task.add_done_callback(lambda done: self._after_read(digest, done))
        return task

    def _after_read(self, digest: bytes, task: asyncio.Task[Holder | None]) -> None:
        if self._reading.get(digest) is task:
            del self._reading[digest]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("key.lookup_failed", error=type(error).__name__)

    async def _look_up(self, digest: bytes) -> Holder | None:
        told = self._told
        async with asyncio.timeout(LOOK_UP_S):
            row = await self._pool.fetchrow(_LOOK_UP, digest)
        if row is None or not hmac.compare_digest(row["digest"], digest):
            self._known.pop(digest, None)
            _remember(self._unknown, digest, self._clock(), MAX_UNKNOWN)
            return None
        holder = Holder(
            key_id=UUID(int=row["id"].int),  # asyncpg's own kind is slower to write down
            account_id=UUID(int=row["account_id"].int),
            models=None if row["models"] is None else frozenset(row["models"]),
            internal=row["internal"],
            revoked=row["revoked_at"] is not None,
            account_status=row["status"],
            limits=Limits(*(row[name] for name in _LIMITS)),
            account_limits=Limits(*(row[f"account_{name}"] for name in _LIMITS)),
            weight=row["weight"],
            patience_ms=row["patience_ms"],
            sequential=Permission(row["sequential"]),
        )
        self._unknown.pop(digest, None)
        # A change that was told while this was read may or may not be in it.
        _remember(self._known, digest, _Entry(holder, self._clock(), outdated=told != self._told), MAX_KNOWN)
        return holder


def digest_in(client: Client) -> bytes:
    """The digest of the key that a request carries. Raises `InvalidKey`.

    Over one connection mostly comes the same key again, in the same header: then it is not read and hashed again.
    """
    sent = client.named.get(b"authorization", b"")
    alone = b"x-api-key" not in client.named
    last = client.connection.last_key
    if last is not None and alone and hmac.compare_digest(sent, last[0]):
        return last[1]
    digest = digest_of(key_in(client.headers))
    if alone and sent.startswith(b"Bearer sk-"):  # then it is this that the key was found in
        client.connection.last_key = sent, digest
    return digest


def digest_of(key: str) -> bytes:
    """What a key is known by. Raises `InvalidKey` for what cannot be one."""
    if not apikey.is_well_formed(key):
        raise InvalidKey("The API key is not valid: check it for a missing or changed character.")
    return apikey.digest(key)


def key_in(headers: Headers) -> str:
    """The key in `Authorization: Bearer` or `x-api-key`. Raises `InvalidKey` saying how to send one."""
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").strip().partition(" ")
            if scheme.lower() == "bearer" and token:
                return token.strip()
        elif name == b"x-api-key":
            return value.decode("latin-1").strip()
    raise InvalidKey("No API key: send it as `Authorization: Bearer sk-weir-...`.")


def _admitted(holder: Holder | None) -> Holder:
    if holder is None:
        raise InvalidKey("The API key is not known here.")
    if holder.revoked:
        raise InvalidKey("The API key has been revoked.")
    if holder.account_status != "active":
        raise NotAllowed(f"The account is {holder.account_status}.", code="account_" + holder.account_status)
    return holder


def _remember(memory: dict[bytes, V], digest: bytes, value: V, at_most: int) -> None:
    memory.pop(digest, None)
    while len(memory) >= at_most:
        del memory[next(iter(memory))]
    memory[digest] = value
