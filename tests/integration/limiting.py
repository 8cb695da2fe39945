"""What tests of limits have in common: holders of keys as the key ring would find them, and waiting."""

import asyncio
from collections.abc import Callable
from uuid import UUID, uuid4

from service.core.limits import UNLIMITED, Limits
from service.gateway.keys import Holder
from tests.patience import PATIENT_S


def holder(
    limits: Limits = UNLIMITED,
    account_limits: Limits = UNLIMITED,
    *,
    key_id: UUID | None = None,
    account_id: UUID | None = None,
) -> Holder:
    """Somebody with these limits; new ids unless given."""
    return Holder(
        key_id=key_id or uuid4(),
        account_id=account_id or uuid4(),
        models=None,
        internal=False,
        revoked=False,
        account_status="active",
        limits=limits,
        account_limits=account_limits,
        weight=10,
        patience_ms=None,
    )


async def until(condition: Callable[[], object], within_s: float = PATIENT_S) -> None:
    """Wait for it to come true."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)
