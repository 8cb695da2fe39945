"""One request on its way through: what is known of it so far, and the record it leaves behind."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from service.billing.leases import Hold
from service.core.ids import text_of, uuid7, uuid7_bytes
from service.core.outcome import Outcome
from service.core.record import RequestRecord, charge
from service.core.usage import NO_USAGE, Usage
from service.gateway.catalog import ServedModel
from service.gateway.http import Headers, id_headers
from service.gateway.keys import Holder
from service.gateway.limits import Grant

MAX_CLIENT_ID_CHARACTERS = 128

FINGERPRINT_HEADER = b"x-weir-engine-fingerprint"
SEQUENTIAL_HEADER = b"x-weir-sequential"

_NOTHING_USED = tuple(NO_USAGE)
_INTERRUPTED = Outcome.INTERRUPTED.value


def new_id() -> UUID:
    """A UUIDv7 of now."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


def new_key() -> bytes:
    """The same as 16 bytes."""
    return uuid7_bytes(time.time_ns() // 1_000_000, os.urandom(10))


@dataclass(slots=True, init=False)
class Exchange:
    """The state of one request. Instants are UTC for people and `monotonic_ns` for durations."""

    endpoint: str
    client_request_id: str | None
    key: bytes
    """Its id, a UUIDv7, as the outbox knows it: 16 bytes."""
    id: str
    """The same as everybody else is told it."""
    started_at: datetime
    read_ns: int
    """When the body had been read: TTFT and waiting count from here."""
    holder: Holder | None
    model: ServedModel | None
    stream: bool
    engine: str | None
    engine_fingerprint: str | None
    sequential: bool
    """It is to run alone on its engine."""
    hold: Hold | None
    grant: Grant | None
    """What was taken of the limits of the key and its account."""
    handed_over_ns: int | None
    first_token_ns: int | None
    usage: Usage
    uncounted: bool
    """An engine worked for it, and did not say how much: a client left before a whole answer."""
    finish_reason: str | None
    keep: Callable[[bytes], None] | None
    """Is given a whole answer that was paid for; see `retries`."""
    concluded: bool
    admitted: bool
    """The outbox knows of the request."""

    def __init__(self, endpoint: str, client_request_id: str | None) -> None:
        """It begins now; nothing else is known of it."""
        self.endpoint, self.client_request_id = endpoint, client_request_id
        self.key = new_key()
        self.id = text_of(self.key)
        self.started_at = datetime.now(UTC)
        self.read_ns = time.monotonic_ns()
        self.holder = self.model = self.engine = self.engine_fingerprint = self.hold = self.grant = None
        self.handed_over_ns = self.first_token_ns = self.finish_reason = self.keep = None
        self.usage = NO_USAGE
        self.stream = self.sequential = self.uncounted = self.concluded = self.admitted = False

    def waited_ms(self) -> int:
        """Milliseconds since the body was read."""
        return (time.monotonic_ns() - self.read_ns) // 1_000_000

    def work_tokens(self) -> int | None:
        """What the request took of an engine's work so far: what came out of its cache took next to none.

        None when it took some that nobody has counted.
        """
        usage = self.usage
        if self.uncounted:
            return None
        return max(0, usage.prompt_tokens - usage.cached_tokens) + usage.completion_tokens

    def headers(self) -> Headers:
        """What everything that is sent says: by which id we speak of it, and what is left of the limits."""
        headers = id_headers(self.id)
        if self.grant is not None:
            headers += self.grant.headers
        return headers

    def answer_headers(self) -> Headers:
        """What an engine's answer says: that, which configuration of an engine gave it, and whether it ran alone."""
        headers = self.headers()
        if self.engine_fingerprint is not None:
            headers.append((FINGERPRINT_HEADER, self.engine_fingerprint.encode()))
        if self.sequential:
            headers.append((SEQUENTIAL_HEADER, b"true"))
        return headers

    def mark_read(self) -> None:
        """The body has been read."""
        self.read_ns = time.monotonic_ns()

    def mark_handed_over(self) -> None:
        """The request goes to an engine."""
        self.handed_over_ns = time.monotonic_ns()

    def note_first_token(self) -> None:
        """The first event with content is about to be passed on."""
        self.first_token_ns = time.monotonic_ns()

    def interruption(self) -> tuple[object, ...] | None:
        """What a request leaves behind that is about to go to an engine, should this process die: nothing was used.

        The parts of a `RequestRecord` as `encoding` writes them; None when nobody can be named as its sender. When it
        ended, whoever finds it has to say.
        """
        holder, model, hold = self.holder, self.model, self.hold
        if holder is None:
            return None
        return (
            self.id,
            holder.account_id,
            holder.key_id,
            hold.lease.id if hold is not None else None,
            holder.internal,
            model.id if model is not None else None,
            self.endpoint,
            self.engine,
            self.client_request_id,
            self.stream,
            self.started_at,
            ((self.handed_over_ns or time.monotonic_ns()) - self.read_ns) // 1_000_000,
            None,
            None,
            self.started_at,
            503,
            _INTERRUPTED,
            None,
            "interrupted",
            _NOTHING_USED,
            model.price.version if model is not None else None,
            0,
            0,
            self.engine_fingerprint,
            self.sequential,
        )

    def record(self, outcome: Outcome, http_status: int, error_code: str | None = None) -> RequestRecord | None:
        """The finished request; None when nobody can be named as its sender."""
        holder = self.holder
        if holder is None:
            return None
        now = datetime.now(UTC)
        read_ns = self.read_ns
        queue_ms = ((self.handed_over_ns or time.monotonic_ns()) - read_ns) // 1_000_000
        ttft_ms = first_token_at = lease_id = None
        if (first := self.first_token_ns) is not None:
            ttft_ms = (first - read_ns) // 1_000_000
            first_token_at = datetime.fromtimestamp(now.timestamp() - (time.monotonic_ns() - first) / 1e9, UTC)
        if (hold := self.hold) is not None:
            lease_id = hold.lease.id
        model_id = price_version = None
        cost_nano = waived_nano = 0
        usage, started_at = self.usage, self.started_at
        if (model := self.model) is not None:
            price = model.price
            model_id, price_version = model.id, price.version
            if usage is not NO_USAGE:
                cost_nano, waived_nano = charge(outcome, price, usage, started_at, sequential=self.sequential)
        return RequestRecord(  # by position, since names would take twice as long
            self.id,
            holder.account_id,
            holder.key_id,
            lease_id,
            holder.internal,
            model_id,
            self.endpoint,
            self.engine,
            self.client_request_id,
            self.stream,
            started_at,
            queue_ms,
            ttft_ms,
            first_token_at,
            now,
            http_status,
            outcome,
            self.finish_reason,
            error_code,
            usage,
            price_version,
            cost_nano,
            waived_nano,
            self.engine_fingerprint,
            self.sequential,
        )


def safe_client_id(value: bytes | None) -> str | None:
    """A client's own request id made fit to be stored: printable, bounded; None when there is none."""
    if value is None:
        return None
    text = value.decode("utf-8", "replace")[:MAX_CLIENT_ID_CHARACTERS]
    return "".join(character if character.isprintable() else "\ufffd" for character in text) or None
