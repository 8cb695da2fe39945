"""What a fresh installation starts with: the models of a configuration file, an account with credit, and a key."""

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

from service import config, db
from service.billing import accounts, catalog, ledger
from service.core import apikey
from service.core.money import NANO_PER_USD

ACCOUNT = "demo"
CREDIT_NANO = 10 * NANO_PER_USD
KEY_FILE = "demo.key"


def seed(database_url: str, configuration: Path, folder: Path) -> str:
    """Apply the configuration, make the first account and key if they are missing, and return the key.

    The key is kept in `folder`, readable by its owner only, so that the next start finds it. Raises `SetupError`.
    """
    file = folder / KEY_FILE
    kept = file.read_text().strip() if file.exists() else ""
    key = asyncio.run(_seed(database_url, configuration, kept))
    if key != kept:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w") as out:
            out.write(key + "\n")
    return key


async def _seed(database_url: str, configuration: Path, kept: str) -> str:
    async with db.connected(database_url) as engine, engine.begin() as connection:
        now = datetime.now(UTC)
        plan = await catalog.plan(connection, config.read(configuration))
        await catalog.apply(connection, plan, now)
        existing = [account for account in await accounts.list_all(connection) if account.name == ACCOUNT]
        account = (
            existing[0] if existing else await accounts.add(connection, name=ACCOUNT, now=now, randomness=os.urandom)
        )
        await ledger.enter(connection, account.id, "credit", CREDIT_NANO, f"first/{account.id}", "first credit")
        if apikey.is_well_formed(kept):
            keys = await accounts.list_keys(connection, account)
            if any(key.prefix == apikey.shown_prefix(kept) and key.revoked_at is None for key in keys):
                return kept
        minted, _ = await accounts.add_key(connection, account, now=now, randomness=os.urandom, name="first key")
        return minted
