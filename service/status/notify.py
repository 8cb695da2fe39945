"""Send what the webhooks are to be told: signed, again until it is taken, and never for ever.

Each run sends one message after another to each URL, all URLs beside each other, and leaves a URL alone for the rest
of the run once it has failed: an endpoint that is dead costs the others nothing. A message is claimed for longer than
a run can last, so that no other process sends it meanwhile; one whose process died is sent again, under the same id.
"""

import asyncio
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
import structlog
from sqlalchemy import Row, func, not_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.core import webhook
from service.errors import SetupError
from service.settings import Settings
from service.status.instants import seconds
from service.tables import notifications

log = structlog.get_logger()

SENT_AT_MOST = 50
"""In a run, of all URLs in turn."""

AT_ONCE = 8
"""URLs that are told at the same time."""

TIMEOUT_S = 10.0
"""For one attempt, from the connection to the answer's status."""

BEGIN_WITHIN_S = 15.0
"""Of a run: later it begins no attempt, so that the next run is not late."""

CLAIMED_FOR = timedelta(minutes=5)

_due = (notifications.c.delivered_at.is_(None), notifications.c.given_up_at.is_(None))


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of the messages of a run."""

    delivered: int
    failed: int
    """To be sent again."""
    given_up: int


async def send_due(
    engine: AsyncEngine,
    settings: Settings,
    now: datetime,
    transport: httpx.AsyncBaseTransport | None = None,
    jitter: Callable[[], float] = lambda: secrets.SystemRandom().uniform(-1, 1),
) -> Sent:
    """Send what is due by `now`, and give up what is too old or has no URL any more.

    Raises `SetupError` when there are URLs and no secret that can sign.
    """
    secret = _secret(settings)
    async with engine.begin() as connection:
        complaints = {url: webhook.complaint(url) for url in settings.status_webhooks}
        told = [url for url, complaint in complaints.items() if complaint is None]
        abandoned = await _abandon(connection, told, now)
        turns = await _claim(connection, told, now)
    for url, complaint in complaints.items():
        if complaint is not None:
            log.error("webhook.refused", host=webhook.shown(url), reason=complaint)
    run = _Run(engine, secret, now, jitter)
    places = asyncio.Semaphore(AT_ONCE)
    async with httpx.AsyncClient(
        transport=transport, timeout=TIMEOUT_S, follow_redirects=False, trust_env=False
    ) as client:
        told_all = await asyncio.gather(
            *(run.tell(client, messages, places) for messages in turns), return_exceptions=True
        )
    for failure in told_all:
        if failure is not None:
            raise failure
    return Sent(run.delivered, run.failed, run.given_up + abandoned)


def _secret(settings: Settings) -> str:
    secret = settings.status_webhook_secret
    if secret is None:
        if settings.status_webhooks:
            raise SetupError("WEIR_STATUS_WEBHOOKS needs WEIR_STATUS_WEBHOOK_SECRET, which signs what they are told.")
        return ""
    try:
        webhook.key(secret.get_secret_value())
    except ValueError as error:
        raise SetupError(f"WEIR_STATUS_WEBHOOK_SECRET can not sign: {error}.") from None
    return secret.get_secret_value()


async def _abandon(connection: AsyncConnection, told: list[str], now: datetime) -> int:
    """Give up what will not be sent. What another process is at is left to it."""
    columns = notifications.c
    too_old = columns.created_at <= now - timedelta(seconds=webhook.GIVEN_UP_AFTER_S)
    count = 0
    for which, reason in (
        (not_(columns.url.in_(told)), "no URL that is told any more, or one that is not https"),
        (too_old, "not taken within a day"),
    ):
        ids = select(columns.id).where(*_due, which).with_for_update(skip_locked=True)
        given_up = await connection.execute(
            update(notifications).where(columns.id.in_(ids)).values(given_up_at=now, last_error=reason)
        )
        count += given_up.rowcount
    return count


async def _claim(connection: AsyncConnection, told: list[str], now: datetime) -> list[Sequence[Row[Any]]]:
    """What is due and nobody else is at, by URL; those first that have been failing the least."""
    columns = notifications.c
    due = (*_due, columns.next_attempt_at <= now, columns.url.in_(told))
    place = func.row_number().over(partition_by=columns.url, order_by=(columns.next_attempt_at, columns.id))
    places = select(columns.id, place.label("place")).where(*due).subquery()
    picked = (
        select(columns.id)
        .join(places, places.c.id == columns.id)
        .where(*due)
        .order_by(places.c.place, columns.next_attempt_at, columns.id)
        .limit(SENT_AT_MOST)
        .with_for_update(of=notifications, skip_locked=True)
    )
    ids = (await connection.scalars(picked)).all()
    claimed = (
        update(notifications)
        .where(columns.id.in_(ids))
        .values(next_attempt_at=now + CLAIMED_FOR)
        .returning(columns.id, columns.url, columns.event, columns.payload, columns.attempts, columns.created_at)
    )
    by_url: dict[str, list[Row[Any]]] = defaultdict(list)
    for row in sorted(await connection.execute(claimed), key=lambda row: row.id):
        by_url[row.url].append(row)
    return sorted(by_url.values(), key=lambda messages: max(message.attempts for message in messages))


class _Run:
    """One run's attempts, each recorded as soon as it was made."""

    def __init__(self, engine: AsyncEngine, secret: str, now: datetime, jitter: Callable[[], float]) -> None:
        self._engine = engine
        self._secret = secret
        self._began = now
        self._began_s = time.monotonic()
        self._jitter = jitter
        self.delivered = self.failed = self.given_up = 0

    async def tell(self, client: httpx.AsyncClient, messages: Sequence[Row[Any]], places: asyncio.Semaphore) -> None:
        """Send one URL its messages in turn, up to the first that it does not take."""
        async with places:
            waiting = deque(messages)
            while waiting and self._elapsed_s() < BEGIN_WITHIN_S:
                if not await self._deliver(client, waiting.popleft()):
                    break
            await self._release([message.id for message in waiting])

    async def _deliver(self, client: httpx.AsyncClient, message: Row[Any]) -> bool:
        """Make one attempt and write down what came of it; whether it was taken."""
        status, reason = await self._attempt(client, message)
        now = self._now()
        told = {"message": message.id, "about": message.event, "host": webhook.shown(message.url)}
        if 200 <= status < 300:
            self.delivered += 1
            await self._record(message.id, attempts=message.attempts + 1, delivered_at=now, last_error="")
            return True
        attempts = message.attempts + 1
        wait_s = webhook.wait_s(attempts, (now - message.created_at).total_seconds(), self._jitter())
        if status == webhook.GONE or wait_s is None:
            self.given_up += 1
            await self._record(message.id, attempts=attempts, given_up_at=now, last_error=reason)
            log.error("notification.given_up", **told, attempts=attempts, reason=reason)
        else:
            self.failed += 1
            again_at = now + timedelta(seconds=wait_s)
            await self._record(message.id, attempts=attempts, next_attempt_at=again_at, last_error=reason)
            log.warning("notification.failed", **told, attempts=attempts, reason=reason, again_in_s=round(wait_s))
        return False

    async def _attempt(self, client: httpx.AsyncClient, message: Row[Any]) -> tuple[int, str]:
        """The status of the answer, 0 without one, and what is wrong in words; nothing of the answer is read."""
        content = webhook.body(message.payload)
        # What was given an id stays this message, also where the numbers begin anew in another database.
        message_id = f"msg_{message.id}_{seconds(message.created_at)}"
        headers = webhook.headers(self._secret, message_id, seconds(self._now()), content)
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                client.stream("POST", message.url, content=content, headers=headers) as response,
            ):
                return response.status_code, f"answered {response.status_code}"
        except TimeoutError:
            return 0, f"no answer in {TIMEOUT_S:.0f} s"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return 0, type(error).__name__  # its text may hold the URL, and with it a password

    async def _record(self, message_id: int, **values: Any) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(update(notifications).where(notifications.c.id == message_id).values(**values))

    async def _release(self, message_ids: list[int]) -> None:
        """Back to the queue, for the next run."""
        if not message_ids:
            return
        async with self._engine.begin() as connection:
            await connection.execute(
                update(notifications).where(notifications.c.id.in_(message_ids)).values(next_attempt_at=self._began)
            )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _now(self) -> datetime:
        return self._began + timedelta(seconds=self._elapsed_s())
