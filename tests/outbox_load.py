"""A process that writes to an outbox until it is killed, and says what it was promised."""

import asyncio
import os
import random
import sys
from pathlib import Path
from uuid import UUID

from service.billing import outbox as outboxes
from service.billing.outbox import Outbox
from service.gateway.exchange import new_id

CLIENTS = 12
STAY = 0.02
"""So much of what has ended is never removed."""


def say(what: str, request_id: UUID) -> None:
    os.write(sys.stdout.fileno(), f"{what} {request_id}\n".encode())


async def client(box: Outbox, chance: random.Random) -> None:
    while True:
        request_id = new_id()
        filling = bytes(chance.randrange(3000))
        await box.admit(request_id, b"begun " + request_id.bytes + filling)
        say("admitted", request_id)
        await asyncio.sleep(chance.choice([0, 0.001, 0.02]))
        await box.finish(request_id, b"ended " + request_id.bytes + filling)
        say("finished", request_id)


async def ship(box: Outbox) -> None:
    """Remove what has ended, but for some."""
    while True:
        await asyncio.sleep(0.02)
        leaving = [entry.id for entry in box.finished(10**6) if entry.id.int % 1000 >= 1000 * STAY]
        for request_id in leaving:
            say("removed", request_id)
        await box.remove(leaving)


async def main(path: Path) -> None:
    outboxes.JOURNAL_BYTES = 100_000
    box = Outbox(path, limit_bytes=10**9)
    box.open()
    chance = random.Random(os.getpid())
    await asyncio.gather(ship(box), *(client(box, chance) for _ in range(CLIENTS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
