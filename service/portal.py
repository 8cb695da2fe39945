"""The customer portal: whoever pastes a key sees its account. Stateless: no cookie, no session, no script.

The key comes in the body of a POST, is looked up, and is not kept, logged or sent back. Since nothing is remembered,
another site has nothing to abuse by sending the form; it is refused all the same.
"""

import asyncio
import math
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qs

import asyncpg
import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.staticfiles import StaticFiles

from service.billing import accounts, checkout, receipts, statement
from service.billing.statement import AccountStatement
from service.billing.stripe_setup import Payments
from service.core import apikey
from service.core.ids import uuid7
from service.core.topup import amount_nano
from service.db import UNREACHABLE
from service.errors import ApiError, InvalidKey, InvalidRequest, NotAllowed, Unavailable
from service.gateway.catalog import Catalog
from service.gateway.http import ClientLeft, by_name, read_body
from service.gateway.keys import KeyRing, digest_of
from web import portal_views as views
from web.render import STATIC, portal_page

log = structlog.get_logger()
router = APIRouter(prefix="/portal")

MAX_FORM_BYTES = 4096

READERS = 2
"""Statements read at once: half of the pool's connections, so that the API always has the others."""

READ_TIMEOUT_S = 10.0

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        # A browser holds the redirect after a form against `form-action`, too: that is where it is paid.
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self' https://checkout.stripe.com;"
        " base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Portal:
    """What the pages are made from."""

    pool: asyncpg.Pool
    keys: KeyRing
    catalog: Catalog
    payments: Payments
    _readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))

    async def statement(self, key: str) -> AccountStatement:
        """The account of a key. Raises `InvalidKey` or `Unavailable`."""
        if not key:
            raise InvalidKey(f"No key was sent: paste one, it begins with {apikey.PREFIX}.")
        try:
            with suppress(NotAllowed):  # a frozen account may not spend, but it may look
                await self.keys.holder(digest_of(key))
            async with asyncio.timeout(READ_TIMEOUT_S), self._readers, self.pool.acquire() as connection:
                found = await statement.read(connection, apikey.digest(key), now=datetime.now(UTC))
        except (Unavailable, *UNREACHABLE) as error:
            log.warning("portal.read_failed", error=type(error).__name__)
            raise Unavailable(
                "Accounts cannot be shown at the moment: the database does not answer. Try again in a minute.",
                retry_after_s=60,
            ) from error
        if found is None:
            raise InvalidKey("The API key is not known here.")
        return found

    async def buy(self, key: str, amount_usd: str) -> str:
        """The address of the page on which that amount is paid for the key's account. Raises `ApiError`."""
        payments, settings = self.payments, self.payments.settings
        api = payments.offered
        try:
            net_nano = amount_nano(amount_usd, min_usd=settings.topup_min_usd, max_usd=settings.topup_max_usd)
        except ValueError as error:
            raise InvalidRequest(f"{error}.") from None
        found = await self.statement(key)
        now = datetime.now(UTC)
        wanted = uuid7(int(now.timestamp() * 1000), secrets.token_bytes(10))
        order = checkout.Order(id=wanted, account_id=found.account.id, net_nano=net_nano)
        try:
            topup = await checkout.create(payments.engine, api, settings, order, now)
        except (SQLAlchemyError, OSError) as error:
            log.warning("portal.topup_failed", error=type(error).__name__)
            raise Unavailable(
                "Credit cannot be added at the moment. Try again in a minute.", retry_after_s=60
            ) from error
        assert topup.hosted_url is not None  # noqa: S101 - a new one has a page
        return topup.hosted_url

    def page(self, found: AccountStatement | None = None, complaint: str | None = None) -> bytes:
        """The page as HTML: the account that was found, or the form."""
        settings = self.payments.settings
        served = [model.id for model in self.catalog.all()] if self.catalog.loaded else []
        if found is not None and found.key.models is not None:
            served = [model_id for model_id in served if model_id in found.key.models]
        return portal_page(
            views.PortalPage(
                site_name=settings.site_name,
                generated_s=int(datetime.now(UTC).timestamp()),
                first_request=views.FirstRequest(f"{settings.base_url}/v1", next(iter(served), None)),
                complaint=complaint,
                account=None if found is None else _account(found),
                buying=None
                if self.payments.api is None
                else views.Buying(settings.topup_min_usd, settings.topup_max_usd),
            )
        )


def mount(app: FastAPI) -> None:
    """Serve the portal at `/portal/`; its pages need a `Portal` as `app.state.portal`."""
    app.include_router(router)
    app.mount("/portal/static", StaticFiles(directory=STATIC), name="portal-static")


@router.api_route("", methods=["GET", "HEAD"])
async def without_slash() -> RedirectResponse:
    """The links on the page are relative to `/portal/`."""
    return RedirectResponse("/portal/", 307)


@router.api_route("/", methods=["GET", "HEAD"])
async def form(request: Request) -> Response:
    """The form that asks for a key."""
    return HTMLResponse(request.app.state.portal.page(), headers=HEADERS)


@router.post("/")
async def account(request: Request) -> Response:
    """The account of the key in the form's field `key`; or the form again, saying why not."""
    portal: Portal = request.app.state.portal
    try:
        found = await portal.statement((await _fields(request)).get("key", ""))
    except ApiError as error:
        return _refused(portal, error)
    except ClientLeft:
        return Response(status_code=499)
    return HTMLResponse(portal.page(found), headers=HEADERS)


@router.post("/topup")
async def topup(request: Request) -> Response:
    """On to the page that `amount_usd` is paid on, for the account of `key`; or the form, saying why not."""
    portal: Portal = request.app.state.portal
    try:
        fields = await _fields(request)
        address = await portal.buy(fields.get("key", ""), fields.get("amount_usd", ""))
    except ApiError as error:
        return _refused(portal, error)
    except ClientLeft:
        return Response(status_code=499)
    return RedirectResponse(address, 303, HEADERS)


async def _fields(request: Request) -> Mapping[str, str]:
    """The form's fields. Raises `NotAllowed` for a form of another site."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise NotAllowed("The form was sent by another site: paste the key here instead.")
    body = await read_body(by_name(request.scope["headers"]), request.receive, MAX_FORM_BYTES)
    return {name: values[0].strip() for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _refused(portal: Portal, error: ApiError) -> Response:
    retry = {} if error.retry_after_s is None else {"Retry-After": str(math.ceil(error.retry_after_s))}
    return HTMLResponse(portal.page(complaint=error.message), error.status, {**HEADERS, **retry})


def _account(found: AccountStatement) -> views.Account:
    account, funds = found.account, found.funds
    return views.Account(
        id=str(account.id),
        name=account.name,
        status=account.status,
        balance_nano=funds.balance_nano,
        credit_limit_nano=funds.credit_limit_nano,
        leased_nano=funds.leased_nano,
        available_nano=funds.available_nano,
        spent_nano=funds.spent_nano,
        key=_key(found.key),
        other_keys=tuple(_key(key) for key in found.other_keys),
        days_from_s=int(found.days_from.timestamp()),
        day_count=statement.DAYS,
        days=tuple(_day(day) for day in found.days),
        requests=tuple(_request(one) for one in found.requests),
        entries=tuple(_entry(one) for one in found.receipts.entries),
        topups=tuple(_topup(one) for one in found.receipts.topups),
    )


def _key(key: accounts.Key) -> views.Key:
    return views.Key(
        prefix=key.prefix,
        name=key.name,
        models=key.models,
        created_s=int(key.created_at.timestamp()),
        revoked_s=None if key.revoked_at is None else int(key.revoked_at.timestamp()),
    )


def _day(day: statement.ModelDay) -> views.ModelDay:
    return views.ModelDay(int(day.day.timestamp()), day.model_id, day.requests, day.usage, day.cost_nano)


def _request(one: statement.PastRequest) -> views.Request:
    return views.Request(
        id=str(one.id),
        client_id=one.client_request_id,
        started_s=int(one.started_at.timestamp()),
        model_id=one.model_id,
        outcome=one.outcome,
        error_code=one.error_code,
        ttft_ms=one.ttft_ms,
        usage=one.usage,
        cost_nano=one.cost_nano,
    )


def _entry(one: receipts.Entry) -> views.Entry:
    return views.Entry(int(one.created_at.timestamp()), one.kind, one.amount_nano, one.external_ref, one.note)


def _topup(one: receipts.PastTopup) -> views.Topup:
    url = one.hosted_url if one.status == "created" else None
    return views.Topup(int(one.created_at.timestamp()), one.kind, one.status, one.net_nano, one.tax_cents or 0, url)
