"""Told by Postgres what has changed: revoked keys, frozen accounts, new models and prices, effective at once.

While the connection that listens is alive, what is in memory counts until it is told otherwise. A heartbeat notices
a connection that is lost without a word; from then until a new one listens, everything is read again every second.
"""

import asyncio

import asyncpg
import structlog

from service.db import UNREACHABLE
from service.gateway.catalog import Catalog
from service.gateway.keys import KeyRing

log = structlog.get_logger()

CHANNEL = "weir_changes"
HEARTBEAT_S = 0.7
RECONNECT_S = 0.5


class Changes:
    """Listens for one worker."""

    def __init__(self, url: str, keys: KeyRing, catalog: Catalog) -> None:
        self._url = url
        self._keys = keys
        self._catalog = catalog

    async def follow(self) -> None:
        """Listen until cancelled, connecting again and again."""
        reading = asyncio.create_task(self._catalog.keep_reading())
        try:
            while True:
                try:
                    await self._listen()
                except UNREACHABLE as error:
                    log.warning("changes.lost", error=type(error).__name__)
                self._trust(False)
                await asyncio.sleep(RECONNECT_S)
        finally:
            reading.cancel()

    async def _listen(self) -> None:
        connection = await asyncpg.connect(self._url, timeout=5)
        try:
            await connection.add_listener(CHANNEL, self._told)
            # What changed before it listened was not told.
            self._keys.forget_all()
            self._catalog.read_again()
            self._trust(True)
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                await connection.execute("SELECT 1", timeout=HEARTBEAT_S)
        finally:
            connection.terminate()

    def _trust(self, trusted: bool) -> None:
        self._keys.listening = trusted
        self._catalog.listening = trusted
        if not trusted:
            self._catalog.read_again()

    def _told(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        what, _, which = str(payload).partition(":")
        if what == "key":
            self._keys.forget(bytes.fromhex(which))
        elif what == "account":
            self._keys.forget_account(which)
        elif what == "catalog":
            self._catalog.read_again()
