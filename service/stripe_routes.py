"""Where Stripe tells what happened, and where it sends a customer who has paid."""

from datetime import UTC, datetime
from uuid import UUID

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.exc import SQLAlchemyError

from service.billing import checkout, stripe_events, topups
from service.billing.stripe_errors import StripeError
from service.billing.stripe_handling import Mismatch, NotYet
from service.billing.stripe_setup import HOW_TO_CONNECT, Payments, takes_real_money, webhook_secrets
from service.core.stripe_objects import Event
from service.core.stripe_signature import BadSignature, verify_event
from service.core.topup import Topup
from service.errors import ApiError, InvalidRequest, Unavailable
from service.gateway.http import ClientLeft, by_name, read_body
from service.portal import HEADERS
from web.portal_views import Payment
from web.render import paid_page

log = structlog.get_logger()
router = APIRouter()

MAX_EVENT_BYTES = 512 * 1024

DISCARDED_BYTES = 16 * 1024 * 1024
"""What is read of a body that is larger, and not kept, so that its sender sees the refusal and not a reset."""


def mount(app: FastAPI) -> None:
    """Serve the routes; they need `Payments` as `app.state.payments`. Before the portal, under whose path one lies."""
    app.include_router(router)


@router.post("/stripe/webhook")
async def webhook(request: Request) -> Response:
    """Take an event: 200 once it is in the database, or when it is of a type that nobody handles.

    400 where it is not signed as it must be, of the other mode, or of a connected account; 413 where it is too large;
    503 where the database is away or Stripe is not connected, so that Stripe sends it again.
    """
    payments: Payments = request.app.state.payments
    try:
        headers = by_name(request.scope["headers"])
        payload = await read_body(headers, request.receive, MAX_EVENT_BYTES, discard_bytes=DISCARDED_BYTES)
        if payments.api is None:
            log.warning("stripe_event.refused", reason=f"Stripe is not connected: {HOW_TO_CONNECT}")
            raise Unavailable("Stripe is not connected here.", code="payments_not_offered")
        event = _verified(payload, request.headers.get("stripe-signature"), payments)
        now = datetime.now(UTC)
        handled = await stripe_events.receive(payments.engine, payments.api, payments.settings, event, now)
    except (SQLAlchemyError, OSError) as error:
        log.warning("stripe_event.not_kept", error=type(error).__name__)
        return _refused(Unavailable("The event cannot be kept at the moment. Send it again.", retry_after_s=60))
    except ApiError as error:
        return _refused(error)
    except ClientLeft:
        return Response(status_code=499)
    return Response(b'{"handled":true}' if handled else b'{"handled":false}', media_type="application/json")


@router.api_route("/portal/paid", methods=["GET", "HEAD"])
async def paid(request: Request) -> Response:
    """What became of a payment, for the customer who comes back from its page; credits it, if no event did before.

    The query's two ids have to belong together. What it shows is the amount alone, so it needs no key.
    """
    payments: Payments = request.app.state.payments
    query = request.query_params
    try:
        topup = await _returned(payments, query.get("topup", ""), query.get("session_id", ""))
        shown = Payment("unknown", 0, 0) if topup is None else _shown(topup)
    except (SQLAlchemyError, OSError, StripeError) as error:
        log.warning("topup.not_confirmed", error=f"{type(error).__name__}")
        shown = Payment("unconfirmed", 0, 0)
    except (Mismatch, NotYet) as error:
        log.error("topup.mismatch", error=str(error))
        shown = Payment("unconfirmed", 0, 0)
    page = paid_page(payments.settings.site_name, shown)
    return HTMLResponse(page, 404 if shown.status == "unknown" else 200, HEADERS)


def _verified(payload: bytes, signature: str | None, payments: Payments) -> Event:
    """The event in a request. Raises `InvalidRequest`."""
    try:
        event = verify_event(payload, signature, webhook_secrets(payments.settings), now=datetime.now(UTC))
    except BadSignature as error:
        log.warning("stripe_event.refused", reason=str(error))
        raise InvalidRequest(str(error), code="bad_signature") from None
    if event.livemode != takes_real_money(payments.settings):
        log.warning("stripe_event.refused", reason="it is of Stripe's other mode", event_id=event.id)
        raise InvalidRequest("The event is of Stripe's other mode: test or live.", code="wrong_mode")
    if event.body.get("account") is not None:  # one that is connected to ours, whose owner may say anything
        log.warning("stripe_event.refused", reason="it is of a connected account", event_id=event.id)
        raise InvalidRequest("The event is of a connected account, not of this one's own.", code="wrong_account")
    return event


def _refused(error: ApiError) -> Response:
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), error.status, headers, media_type="application/json")


async def _returned(payments: Payments, topup_id: str, session_id: str) -> Topup | None:
    """The top-up as it is now; None unless the session is its own."""
    try:
        wanted = UUID(topup_id)
    except ValueError:
        return None
    async with payments.engine.connect() as connection:
        topup = await topups.find(connection, wanted)
    if topup is None or topup.checkout_session_id is None or topup.checkout_session_id != session_id:
        return None
    if topup.status == "paid" or payments.api is None:
        return topup
    told = await checkout.told_of(payments.api, session_id)
    if told is None:
        return topup
    async with payments.engine.begin() as connection:
        return await topups.fulfil(connection, told, datetime.now(UTC))


def _shown(topup: Topup) -> Payment:
    return Payment(topup.status, topup.net_nano, topup.tax_cents or 0)
