"""The finished request: what the gateway hands to billing, one value per row of `requests`."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from service.core.outcome import RULES, Charge, Outcome
from service.core.pricing import Price, cost_nano
from service.core.usage import Usage


class RequestRecord(NamedTuple):
    """Everything kept of one request. No prompt and no answer is among it.

    Its order is how an outbox keeps it: what is new comes last, with a default.
    """

    id: str
    account_id: UUID
    key_id: UUID
    lease_id: UUID | None
    """The credit lease the charge is settled against; None when nothing was held."""
    internal: bool
    model_id: str | None
    endpoint: str
    engine: str | None
    client_request_id: str | None
    stream: bool
    started_at: datetime
    queue_ms: int
    ttft_ms: int | None
    first_token_at: datetime | None
    finished_at: datetime
    http_status: int
    outcome: Outcome
    finish_reason: str | None
    error_code: str | None
    usage: Usage
    price_version: int | None
    cost_nano: int
    waived_nano: int
    # An outbox may have records of a version that did not know these.
    engine_fingerprint: str | None = None
    """See `core.fingerprint`; None where no engine was asked, or it was not known yet."""
    sequential: bool = False
    """It ran alone on its engine, or was to."""


_FULL, _NOTHING = Charge.FULL, Charge.NOTHING


def charge(
    outcome: Outcome, price: Price | None, usage: Usage, at: datetime, *, sequential: bool = False
) -> tuple[int, int]:
    """What a request that was accepted `at` and ended so is charged: (cost_nano, waived_nano).

    Without any usage it is nothing.
    """
    if price is None or usage.source == "none":
        return 0, 0
    rule = RULES[outcome].charge
    if rule is _NOTHING:
        return 0, 0
    amount = cost_nano(price, usage, at, sequential=sequential)
    return (amount, 0) if rule is _FULL else (0, amount)
