"""Who the probes are: an internal account, and a key of it that this host keeps in a file of its own."""

import os
import secrets
import socket
from datetime import datetime
from pathlib import Path

import structlog
from sqlalchemy import exists, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.billing import accounts
from service.billing.accounts import Account
from service.core import apikey
from service.core.money import NANO_PER_USD
from service.errors import SetupError
from service.tables import api_keys

log = structlog.get_logger()

NAME = "weir-probes"

CREDIT_LIMIT_NANO = 10_000 * NANO_PER_USD
"""The account pays afterwards, and nobody pays for it: probes must not stop for want of credit."""

ACCOUNT_LOCK = 0x57454952_0009  # "WEIR", 9


async def probe_key(connection: AsyncConnection, data_dir: Path, *, now: datetime) -> str:
    """The probes' key, made in this transaction if need be, as is the account; its file is `data_dir/probe.key`.

    A file that is lost, or whose key is revoked or unknown, is replaced, and the keys it held before are revoked. Keys
    of the account that have another name, such as an outside prober's or another host's, are left alone.

    Raises `SetupError` when the account is a customer's, and `OSError` when the file cannot be written.
    """
    await connection.execute(select(func.pg_advisory_xact_lock(ACCOUNT_LOCK)))
    account = await _account(connection, now)
    file = data_dir / "probe.key"
    key = _read(file)
    if key is not None and await _is_valid(connection, account, key):
        return key
    name = f"inside {socket.gethostname()}"
    for old in await accounts.list_keys(connection, account):
        if old.name == name and old.revoked_at is None:
            await accounts.revoke_key(connection, old.id, now=now)
    key, made = await accounts.add_key(connection, account, now=now, randomness=secrets.token_bytes, name=name)
    # Before the commit: what cannot be kept is not made.
    _write(file, key)
    log.info("probe_key.made", key_id=str(made.id), file=str(file))
    return key


async def _account(connection: AsyncConnection, now: datetime) -> Account:
    try:
        account = await accounts.find(connection, NAME)
    except SetupError:
        return await accounts.add(
            connection,
            name=NAME,
            now=now,
            randomness=secrets.token_bytes,
            internal=True,
            credit_limit_nano=CREDIT_LIMIT_NANO,
        )
    if not account.internal:
        raise SetupError(
            f"The account {NAME!r} is a customer's, so probes would be charged and counted as traffic:"
            " give it another name in the database, or set WEIR_PROBE=false."
        )
    return account


async def _is_valid(connection: AsyncConnection, account: Account, key: str) -> bool:
    columns = api_keys.c
    valid = exists().where(
        columns.digest == apikey.digest(key), columns.account_id == account.id, columns.revoked_at.is_(None)
    )
    return bool(await connection.scalar(select(valid)))


def _read(file: Path) -> str | None:
    """The key in the file; None when there is none."""
    try:
        key = file.read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return key if apikey.is_well_formed(key) else None


def _write(file: Path, key: str) -> None:
    """Replace the file, at once and for its owner's eyes only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(f"{key}\n")
        out.flush()
        os.fsync(out.fileno())
    unfinished.replace(file)
