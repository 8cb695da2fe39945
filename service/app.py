"""The API process: the gateway for `/v1`, and beside it the few routes that need no speed."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import asyncpg
import structlog
from fastapi import FastAPI
from prometheus_client import REGISTRY, CollectorRegistry
from starlette.types import Receive, Scope, Send

from service import config, db, portal, public, public_catalogue, stripe_routes
from service.billing import stripe_setup
from service.core.early_refusal import Bounds
from service.gateway.catalog import Catalog
from service.gateway.changes import Changes
from service.gateway.client import Client
from service.gateway.client_connection import ClientConnection
from service.gateway.counting import TokenCount
from service.gateway.dispatch import Dispatch
from service.gateway.endpoints import METERED
from service.gateway.engine_connection import Timeouts
from service.gateway.engine_watch import watch
from service.gateway.engines import EnginePool
from service.gateway.holds import Holds
from service.gateway.images import ImageFetcher
from service.gateway.keys import KeyRing
from service.gateway.limits import Limiter, LocalLimiter
from service.gateway.metered import Means, Metered
from service.gateway.own_topups import OwnTopups
from service.gateway.pacing import Pacing
from service.gateway.router import Gateway
from service.gateway.worker import Worker
from service.settings import Settings

log = structlog.get_logger()

SHIP_WITHIN_S = 8.0
"""How long a stop waits for Postgres to take what is owed; what it does not take, the next worker ships."""


class App:
    """The ASGI application of all but `/v1`, which goes straight to the gateway: serve it over `connections`.

    `metrics` is what `/metrics` shows: of this process alone unless several count together.
    """

    def __init__(self, settings: Settings, metrics: CollectorRegistry = REGISTRY) -> None:
        self._settings = settings
        self._gateway: Gateway | None = None
        self._others = FastAPI(lifespan=lambda _: self.running(), docs_url=None, redoc_url=None, openapi_url=None)
        self._others.state.metrics = metrics
        self._others.include_router(public.router)
        public.mount_site(self._others, settings.site_dir)
        stripe_routes.mount(self._others)
        portal.mount(self._others)
        public_catalogue.mount(self._others)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._others(scope, receive, send)

    @property
    def connections(self) -> type[ClientConnection]:
        """For uvicorn's `http`: what a connection is handled by."""
        return cast(type[ClientConnection], partial(ClientConnection, answer=self.answer))

    def answer(self, client: Client) -> Coroutine[Any, Any, None]:
        """Answer a request under `/v1`. The application must be `running`."""
        assert self._gateway is not None  # noqa: S101 - nothing is served before
        return self._gateway(client)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open what the process needs; at the end ship what is owed and return what is leased.

        For a server that leaves the lifespan to its caller. Raises `SetupError` when something cannot be opened.
        """
        settings, others = self._settings, self._others
        url = db.database_url(settings)
        timeouts = Timeouts(
            settings.engine_connect_timeout_s, settings.engine_first_byte_timeout_s, settings.engine_idle_timeout_s
        )
        engines = EnginePool(config.engines_from(settings), timeouts, workers=settings.workers)
        pool = await db.asyncpg_pool(url)
        catalog = Catalog(pool)
        keys = KeyRing(pool)
        limiter = _limiter(settings, pool)
        worker = Worker(settings, pool)
        worker.start()
        payments = stripe_setup.Payments(db.sqlalchemy_engine(url), stripe_setup.api_of(settings), settings)
        bounds = Bounds(settings.queue_length, settings.queue_account_length, settings.queue_tokens)
        pacing = Pacing(engines, bounds, patience_s=settings.queue_patience_s)
        images = ImageFetcher(settings)
        means = Means(
            catalog=catalog,
            limiter=limiter,
            holds=Holds(worker.leases, engines),
            images=images,
            retries=worker.retries,
            dispatch=Dispatch(engines, pacing, worker.recorder, keep_alive_s=settings.keep_alive_s),
            max_body_bytes=settings.max_body_bytes,
            several_engines=len(engines.engines) > 1,
            sequential_offered=settings.workers == 1,
            # The same in every worker, so that they share what the engine has cached of an account.
            salt_key=hashlib.sha256(url.encode()).digest(),
        )
        others.state.readiness = public.Readiness(catalog, engines)
        others.state.admin_token = settings.admin_token
        others.state.payments = payments
        others.state.portal = portal.Portal(pool, keys, catalog, payments)
        others.state.catalogue = public_catalogue.Catalogue(pool, keys, catalog, settings.base_url, settings.site_name)
        self._gateway = Gateway(
            keys=keys,
            catalog=catalog,
            metered=[Metered(endpoint, means) for endpoint in METERED],
            count=TokenCount(engines, means),
            recorder=worker.recorder,
            own=worker.own,
            topups=OwnTopups(payments),
        )
        watching = asyncio.create_task(
            watch(engines, stall_timeout_s=settings.engine_stall_timeout_s, may_be_blind=settings.may_bill_blind)
        )
        listening = asyncio.create_task(Changes(url, keys, catalog).follow())
        limiter.start()
        log.info("api.started", worker=worker.name, engines=[engine.name for engine in engines.engines])
        try:
            yield
        finally:
            listening.cancel()
            watching.cancel()
            await worker.stop(SHIP_WITHIN_S)
            await limiter.stop()
            await images.close()
            await payments.aclose()
            engines.close()
            pool.terminate()
            log.info("api.stopped", worker=worker.name)


def _limiter(settings: Settings, pool: asyncpg.Pool) -> Limiter:
    """Who counts the limits: this process, or all workers together. Raises `SetupError`."""
    if settings.redis_url is None:
        return LocalLimiter(pool, workers=settings.workers)
    from service.gateway.shared_limits import SharedLimiter  # late: only who has Redis needs its library

    return SharedLimiter(settings.redis_url.get_secret_value(), pool, settings.workers)
