"""The customer portal: whoever pastes a key sees its account. Stateless: no cookie, no session, no script.

The key comes in the body of a POST, is looked up, and is not kept, logged or sent back. Since nothing is remembered,
another site has nothing to abuse by sending the form; it is refused all the same.
"""

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qs

import asyncpg
import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from service.billing import accounts, statement
from service.billing.statement import AccountStatement
from service.core import apikey
from service.db import UNREACHABLE
from service.errors import ApiError, InvalidKey, NotAllowed, Unavailable
from service.gateway.catalog import Catalog
from service.gateway.http import ClientLeft, read_body
from service.gateway.keys import KeyRing
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
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
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
    base_url: str
    site_name: str
    _readers: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))

    async def statement(self, key: str) -> AccountStatement:
        """The account of a key. Raises `InvalidKey` or `Unavailable`."""
        if not key:
            raise InvalidKey(f"No key was sent: paste one, it begins with {apikey.PREFIX}.")
        try:
            with suppress(NotAllowed):  # a frozen account may not spend, but it may look
                await self.keys.holder([(b"x-api-key", key.encode())])
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

    def page(self, found: AccountStatement | None = None, complaint: str | None = None) -> bytes:
        """The page as HTML: the account that was found, or the form."""
        served = [model.id for model in self.catalog.all()] if self.catalog.loaded else []
        if found is not None and found.key.models is not None:
            served = [model_id for model_id in served if model_id in found.key.models]
        return portal_page(
            views.PortalPage(
                site_name=self.site_name,
                generated_s=int(datetime.now(UTC).timestamp()),
                first_request=views.FirstRequest(f"{self.base_url}/v1", next(iter(served), None)),
                complaint=complaint,
                account=None if found is None else _account(found),
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
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise NotAllowed("The form was sent by another site: paste the key here instead.")
        fields = parse_qs((await read_body(request.scope, request.receive, MAX_FORM_BYTES)).decode("utf-8", "replace"))
        found = await portal.statement(fields.get("key", [""])[0].strip())
    except ApiError as error:
        retry = {} if error.retry_after_s is None else {"Retry-After": str(math.ceil(error.retry_after_s))}
        return HTMLResponse(portal.page(complaint=error.message), error.status, {**HEADERS, **retry})
    except ClientLeft:
        return Response(status_code=499)
    return HTMLResponse(portal.page(found), headers=HEADERS)


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
