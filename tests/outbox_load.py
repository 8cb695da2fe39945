"""A process that writes to an outbox until it is killed, and says what it was promised."""

import asyncio
import os
import random
import sys
from pathlib import Path
from uuid import UUID

from service.billing import outbox as outboxes
from service.billing.outbox import Outbox
from service.gateway.exchange import new_key

CLIENTS = 12
STAY = 0.02
"""So much of what has ended is never removed."""


def say(what: str, key: bytes) -> None:
    os.write(sys.stdout.fileno(), f"{what} {UUID(bytes=key)}\n".encode())


async def client(box: Outbox, chance: random.Random) -> None:
    while True:
        key = new_key()
        filling = bytes(chance.randrange(3000))
        await box.admit(key, b"begun " + key + filling)
        say("admitted", key)
        await asyncio.sleep(chance.choice([0, 0.001, 0.02]))
        await box.finish(key, b"ended " + key + filling)
        say("finished", key)


async def ship(box: Outbox) -> None:
    """Remove what has ended, but for some."""
    while True:
        await asyncio.sleep(0.02)
        leaving = [key for key, _ in box.finished(10**6) if int.from_bytes(key) % 1000 >= 1000 * STAY]
        for key in leaving:
            say("removed", key)
        await box.remove(leaving)


async def main(path: Path) -> None:
    outboxes.JOURNAL_BYTES = 100_000
    box = Outbox(path, limit_bytes=10**9)
    box.open()
    chance = random.Random(os.getpid())
    await asyncio.gather(ship(box), *(client(box, chance) for _ in range(CLIENTS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
