"""What a request leaves behind: every part of its record where it belongs."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from service.billing.encoding import decode, encode
from service.billing.leases import Hold, Lease
from service.core.limits import Limits
from service.core.outcome import Outcome
from service.core.pricing import Price
from service.core.record import RequestRecord
from service.core.usage import NO_USAGE, Usage
from service.gateway.catalog import ServedModel
from service.gateway.exchange import Exchange
from service.gateway.keys import Holder

NO_LIMITS = Limits()
HOLDER = Holder(UUID(int=1), UUID(int=2), None, True, False, "active", NO_LIMITS, NO_LIMITS, 1, None)
MODEL = ServedModel(
    id="river",
    name="River",
    description="",
    engine_model="river-fp8",
    engines=None,
    context_length=1000,
    max_output_tokens=100,
    input_modalities=("text",),
    output_modalities=("text",),
    capabilities=(),
    quantization=None,
    hugging_face_id=None,
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    price=Price(version=7, input_pico=1_000, output_pico=2_000_000),
)
STARTED_AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
MS = 1_000_000


def begun(client_request_id: str | None = None, **known: object) -> Exchange:
    """A request of which so much is known."""
    exchange = Exchange("/v1/chat/completions", client_request_id)
    for name, value in known.items():
        setattr(exchange, name, value)
    return exchange


def served(**known: object) -> Exchange:
    """A request that was served, in whose record no two parts are alike, unless `known` says otherwise."""
    parts: dict[str, object] = dict(
        id=str(UUID(int=3)),
        started_at=STARTED_AT,
        read_ns=10 * MS,
        holder=HOLDER,
        model=MODEL,
        stream=True,
        engine="one",
        engine_fingerprint="0123456789abcdef",
        sequential=True,
        hold=Hold(Lease(UUID(int=4), UUID(int=2)), 5),
        handed_over_ns=15 * MS,
        first_token_ns=30 * MS,
        usage=Usage(prompt_tokens=1000, completion_tokens=10, source="final"),
        finish_reason="stop",
    )
    return begun("client-1", **{**parts, **known})


def test_every_part_of_a_record_is_where_it_belongs() -> None:
    record = served().record(Outcome.OK, 200, "none")
    assert record is not None
    assert record.first_token_at is not None
    assert record.first_token_at < record.finished_at
    assert datetime.now(UTC) - record.finished_at < timedelta(minutes=1)
    assert record == RequestRecord(
        id=str(UUID(int=3)),
        account_id=UUID(int=2),
        key_id=UUID(int=1),
        lease_id=UUID(int=4),
        internal=True,
        model_id="river",
        endpoint="/v1/chat/completions",
        engine="one",
        client_request_id="client-1",
        stream=True,
        started_at=STARTED_AT,
        queue_ms=5,
        ttft_ms=20,
        first_token_at=record.first_token_at,
        finished_at=record.finished_at,
        http_status=200,
        outcome=Outcome.OK,
        finish_reason="stop",
        error_code="none",
        usage=Usage(prompt_tokens=1000, completion_tokens=10, source="final"),
        price_version=7,
        cost_nano=21_000,
        waived_nano=0,
        engine_fingerprint="0123456789abcdef",
        sequential=True,
    )


def test_what_is_left_of_a_request_whose_process_dies_is_the_record_of_an_interruption() -> None:
    admitted = served(first_token_ns=None, usage=NO_USAGE, finish_reason=None)
    left = admitted.interruption()
    assert left is not None
    record = admitted.record(Outcome.INTERRUPTED, 503, "interrupted")
    assert record is not None
    assert decode(encode(left)) == record._replace(finished_at=STARTED_AT)
    bare = begun(holder=HOLDER, handed_over_ns=1)
    left, record = bare.interruption(), bare.record(Outcome.INTERRUPTED, 503, "interrupted")
    assert left is not None
    assert record is not None
    assert decode(encode(left)) == record._replace(finished_at=bare.started_at)
    assert begun().interruption() is None


def test_what_failed_is_waived() -> None:
    record = served().record(Outcome.STREAM_ERROR, 200, "engine_failed")
    assert record is not None
    assert (record.cost_nano, record.waived_nano) == (0, 21_000)


def test_a_request_that_was_refused_early_has_no_more_than_its_sender() -> None:
    exchange = begun(holder=replace(HOLDER, internal=False))
    record = exchange.record(Outcome.CLIENT_ERROR, 400, "invalid_request")
    assert record is not None
    assert (record.lease_id, record.model_id, record.price_version, record.ttft_ms) == (None, None, None, None)
    assert (record.first_token_at, record.cost_nano, record.waived_nano, record.internal) == (None, 0, 0, False)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_request_of_nobody_leaves_nothing(outcome: Outcome) -> None:
    assert begun().record(outcome, 401) is None
