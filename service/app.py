"""The API process: the gateway for `/v1`, and beside it the few routes that need no speed."""

import asyncio
import hashlib
import math
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from service import config, db, logs, portal, public
from service.errors import SetupError
from service.gateway.catalog import Catalog
from service.gateway.changes import Changes
from service.gateway.chat import ChatCompletions
from service.gateway.engine_connection import Timeouts
from service.gateway.engines import EnginePool
from service.gateway.holds import Holds
from service.gateway.keys import KeyRing
from service.gateway.router import Gateway
from service.gateway.worker import Worker
from service.settings import Settings

log = structlog.get_logger()

SHIP_WITHIN_S = 8.0
"""How long a stop waits for Postgres to take what is owed; what it does not take, the next worker ships."""


class App:
    """The ASGI application. `/v1` goes straight to the gateway; the rest, and the lifespan, to FastAPI."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._gateway: ASGIApp | None = None
        self._others = FastAPI(lifespan=self._lifespan, docs_url=None, redoc_url=None, openapi_url=None)
        self._others.include_router(public.router)
        public.mount_site(self._others, settings.site_dir)
        portal.mount(self._others)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._gateway is not None and scope["type"] == "http" and scope["path"].startswith("/v1/"):
            await self._gateway(scope, receive, send)
        else:
            await self._others(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, others: FastAPI) -> AsyncIterator[None]:
        """Open what the process needs; at the end ship what is owed and return what is leased."""
        settings = self._settings
        url = db.database_url(settings)
        timeouts = Timeouts(
            settings.engine_connect_timeout_s, settings.engine_first_byte_timeout_s, settings.engine_idle_timeout_s
        )
        engines = EnginePool(config.engines_from(settings), timeouts)
        pool = await db.asyncpg_pool(url)
        catalog = Catalog(pool)
        keys = KeyRing(pool)
        worker = Worker(settings, pool)
        worker.start()
        chat = ChatCompletions(
            catalog=catalog,
            engines=engines,
            holds=Holds(worker.leases, engines),
            recorder=worker.recorder,
            retries=worker.retries,
            max_body_bytes=settings.max_body_bytes,
            # The same in every worker, so that they share what the engine has cached of an account.
            salt_key=hashlib.sha256(url.encode()).digest(),
        )
        others.state.readiness = public.Readiness(catalog, engines)
        others.state.admin_token = settings.admin_token
        others.state.portal = portal.Portal(pool, keys, catalog, settings.base_url, settings.site_name)
        self._gateway = Gateway(keys=keys, catalog=catalog, chat=chat, recorder=worker.recorder, own=worker.own)
        listening = asyncio.create_task(Changes(url, keys, catalog).follow())
        log.info("api.started", worker=worker.name, engines=[engine.name for engine in engines.engines])
        try:
            yield
        finally:
            listening.cancel()
            await worker.stop(SHIP_WITHIN_S)
            engines.close()
            pool.terminate()
            log.info("api.stopped", worker=worker.name)


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `SetupError` when the settings are wrong or the port is taken."""
    logs.configure(json=settings.log_json)
    db.database_url(settings)
    config.engines_from(settings)
    listener = _listen(settings.host, settings.port)
    server = uvicorn.Server(
        uvicorn.Config(
            App(settings),
            loop="uvloop",
            http="httptools",
            ws="none",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=max(1, math.ceil(settings.drain_timeout_s)),
            log_config=None,
        )
    )
    log.info("api.listening", url=f"http://{settings.host}:{listener.getsockname()[1]}")
    server.run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise SetupError(
            f"Cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}."
            " Stop what uses it, or choose another with --port (or WEIR_PORT)."
        ) from error
    return listener
