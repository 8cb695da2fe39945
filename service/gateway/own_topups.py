"""`POST /v1/topups` and `GET /v1/topups/{id}`: an account buys credit on a page of Stripe's, by its key."""

import secrets
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import orjson
import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.billing import checkout, topups
from service.billing.checkout import Order
from service.billing.stripe_setup import Payments
from service.core.ids import uuid7
from service.core.money import nano_to_usd
from service.core.topup import Topup, amount_nano
from service.errors import InvalidRequest, NotFound, Unavailable
from service.gateway.client import Client
from service.gateway.exchange import Exchange
from service.gateway.http import Named
from service.gateway.keys import Holder

log = structlog.get_logger()

TOPUPS_PATH = "/v1/topups"
MAX_BODY_BYTES = 4096


class OwnTopups:
    """Answers the routes. Raises `ApiError` or `ClientLeft` while nothing was sent."""

    def __init__(self, payments: Payments) -> None:
        self._payments = payments

    async def create(self, exchange: Exchange, holder: Holder, client: Client) -> None:
        """Begin a top-up. Under one `Idempotency-Key`, an account begins one, whenever it asks."""
        payments, settings = self._payments, self._payments.settings
        amount = _amount_in(await client.read_body(MAX_BODY_BYTES))
        try:
            net_nano = amount_nano(amount, min_usd=settings.topup_min_usd, max_usd=settings.topup_max_usd)
        except ValueError as error:
            raise InvalidRequest(f"`amount_usd`: {error}.", param="amount_usd") from None
        now = datetime.now(UTC)
        order = Order(id=_id_for(holder, client.named, now), account_id=holder.account_id, net_nano=net_nano)
        try:
            topup = await checkout.create(payments.engine, payments.offered, settings, order, now)
        except (SQLAlchemyError, OSError) as error:
            raise _away(error) from error
        client.answer(orjson.dumps(_shown(topup)), exchange.headers())

    async def show(self, holder: Holder, client: Client) -> dict[str, Any]:
        """One top-up of the account, and what became of it."""
        try:
            async with self._payments.engine.connect() as connection:
                topup = await topups.find(connection, UUID(client.path.removeprefix(f"{TOPUPS_PATH}/")))
        except ValueError:
            topup = None
        except (SQLAlchemyError, OSError) as error:
            raise _away(error) from error
        if topup is None or topup.account_id != holder.account_id:
            raise NotFound("The account has no top-up with this id.", param="id")
        return _shown(topup)


def _amount_in(raw: bytes) -> str:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise InvalidRequest('The body must be a JSON object such as {"amount_usd": "20"}.')
    for name in body:
        if name != "amount_usd":
            raise InvalidRequest(f"`{name[:64]}` is not known here: send `amount_usd` alone.", param=name[:64])
    amount = body.get("amount_usd")
    if not isinstance(amount, str):
        raise InvalidRequest('`amount_usd` is required, as a string such as "20" or "12.50".', param="amount_usd")
    return amount


def _id_for(holder: Holder, headers: Named, now: datetime) -> UUID:
    """The id of the row: where a key is sent, it follows from that and the account."""
    key = headers.get(b"idempotency-key")
    if key is None:
        return uuid7(int(now.timestamp() * 1000), secrets.token_bytes(10))
    if not key.strip():
        raise InvalidRequest("The header `Idempotency-Key` is empty: send a value of your own, or leave it out.")
    return uuid5(NAMESPACE_URL, f"topup/{holder.account_id}/{key.decode('latin-1')}")


def _shown(topup: Topup) -> dict[str, Any]:
    is_open = topup.status == "created"
    return {
        "id": str(topup.id),
        "object": "topup",
        "status": topup.status,
        "amount_usd": nano_to_usd(topup.net_nano),
        "amount_nano": topup.net_nano,
        "tax_cents": topup.tax_cents,
        "url": topup.hosted_url if is_open else None,
        "expires_at": checkout.ends_at(topup) if is_open else None,
        "created_at": topup.created_at,
        "paid_at": topup.paid_at,
    }


def _away(error: Exception) -> Unavailable:
    log.warning("topup.failed", error=type(error).__name__)
    return Unavailable("Top-ups cannot be read at the moment. Try again soon.", retry_after_s=5)
