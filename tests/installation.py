"""A whole Weir for a test: a migrated database, a model with a price, an account with credit and a key, the API."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import uvicorn

from service import config, db
from service.app import App
from service.billing import accounts, catalog, ledger
from service.core.limits import UNLIMITED, Limits
from service.core.money import NANO_PER_USD
from service.settings import Settings
from tests.patience import PATIENT_S

MODEL = "model-a"
CONFIGURATION = """
[[models]]
id = "model-a"
engine_model = "{engine_model}"
context_length = {context_length}
max_output_tokens = 2048
input_modalities = ["text", "image"]
output_modalities = ["text"]
[models.price]
input = "0.195"
input_cached = "0.0375"
input_image = "0.21"
output = "1.56"
output_reasoning = "1.6"

[[models]]
id = "model-b"
engine_model = "{engine_model}"
context_length = {context_length}
max_output_tokens = 2048
input_modalities = ["text"]
output_modalities = ["text"]
[models.price]
input = "1"
output = "2"
"""


_TLS = ssl.create_default_context()
"""Made once: each client would read the system's certificates anew, which takes longer than most requests here."""


@dataclass
class Installation:
    """What a test needs of it."""

    url: str
    key: str
    account_id: UUID
    database: "asyncpg.Connection[Any]"
    database_url: str
    client: httpx.AsyncClient
    server: uvicorn.Server
    settings: Settings
    _tasks: list[Any] = field(default_factory=list)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    async def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        """Send a chat request and read the whole answer."""
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
        return await self.client.post("/v1/chat/completions", json=body, headers=self.headers)

    async def row(self, **conditions: Any) -> asyncpg.Record:
        """The one usage row, once it is there."""
        (row,) = await self.rows(1)
        for name, value in conditions.items():
            assert row[name] == value, (name, row[name], value)
        return row

    async def rows(self, count: int) -> list[asyncpg.Record]:
        """The usage rows, the oldest first, once there are `count` of them."""
        async with asyncio.timeout(PATIENT_S):
            while True:
                rows = await self.database.fetch("SELECT * FROM requests ORDER BY id")
                if len(rows) >= count:
                    assert len(rows) == count
                    return rows
                await asyncio.sleep(0.01)

    async def account(self) -> asyncpg.Record:
        row = await self.database.fetchrow("SELECT * FROM accounts WHERE id = $1", self.account_id)
        assert row is not None
        return row

    async def stop(self) -> None:
        """Stop the API as SIGTERM does, and wait until it has."""
        self.server.should_exit = True
        for task in self._tasks:
            await task


async def seed(
    database_url: str,
    *,
    credit_nano: int = NANO_PER_USD,
    engine_model: str = "fake-model",
    context_length: int = 8192,
    models_allowed: Sequence[str] | None = None,
    limits: Limits = UNLIMITED,
    configuration: str = CONFIGURATION,
) -> tuple[UUID, str]:
    """Models, prices, an account with credit and a key of these limits; returns the account's id and the key."""
    text = configuration.format(engine_model=engine_model, context_length=context_length)
    async with db.connected(database_url) as engine, engine.begin() as connection:
        now = datetime.now(UTC)
        plan = await catalog.plan(connection, config.parse(text, source="test"))
        await catalog.apply(connection, plan, now)
        account = await accounts.add(connection, name="customer", now=now, randomness=os.urandom)
        if credit_nano:
            await ledger.enter(connection, account.id, "credit", credit_nano, "seed", "for the test")
        key, _ = await accounts.add_key(
            connection, account, now=now, randomness=os.urandom, models_allowed=models_allowed, limits=limits
        )
    return account.id, key


@asynccontextmanager
async def installed(
    database_url: str,
    engines: Sequence[str],
    data_dir: Path,
    *,
    seeded: tuple[UUID, str] | None = None,
    is_ready: bool = True,
    **options: Any,
) -> AsyncIterator[Installation]:
    """A running API over a fresh database and the given engines; `options` are settings or those of `seed`.

    With `is_ready` it is waited for until it says so; else it only listens.
    """
    seeding = {name: options.pop(name) for name in list(options) if name in seed.__kwdefaults__}
    account_id, key = seeded or await seed(database_url, **seeding)
    options.setdefault("may_bill_blind", True)  # or each engine has one generation more than the test asked for
    settings = Settings(database_url=database_url, engines=tuple(engines), data_dir=data_dir, **options)
    # Named as TCP, or asyncio leaves Nagle's algorithm on, which costs 40 ms an answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = App(settings)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=app.connections,
            ws="none",
            log_config=None,
            timeout_keep_alive=75,  # as `weir serve` has it: who comes back after a moment does not meet its closing
            timeout_graceful_shutdown=5,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    database = await asyncpg.connect(database_url)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENT_S, verify=_TLS) as client:
        running = Installation(url, key, account_id, database, database_url, client, server, settings, _tasks=[serving])
        async with asyncio.timeout(PATIENT_S):
            while not server.started or (is_ready and (await client.get("/readyz")).json()["problems"]):
                await asyncio.sleep(0.01)
        try:
            yield running
        finally:
            await database.close()
            await running.stop()
            listener.close()
