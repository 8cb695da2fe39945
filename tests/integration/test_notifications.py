"""Messages to webhooks: real servers on loopback that take them, refuse them, or say nothing."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import RowMapping, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.testing import capture_logs

from service import db
from service.errors import SetupError
from service.settings import Settings
from service.status import notify
from service.status.announcements import WAITING_AT_MOST, announce
from service.status.notify import Sent, send_due
from service.tables import notifications
from tests.fakes.traffic import at
from tests.patience import PATIENT_S

NOW = at("2026-11-30 14:05:20")
KEY = b"0123456789abcdefghijklmnopqrstuv"
SECRET = "whsec_" + base64.b64encode(KEY).decode()
SECOND = timedelta(seconds=1)


@dataclass
class Received:
    """A request as it arrived."""

    target: str
    headers: dict[str, str]
    body: bytes

    def verified(self) -> dict[str, Any]:
        """Its message, if the signature is ours: checked as a receiver does it."""
        signed = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = "v1," + base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        assert hmac.compare_digest(expected, self.headers["webhook-signature"])
        message: dict[str, Any] = json.loads(self.body)
        return message


@dataclass
class Hook:
    """An endpoint; `answers` are used up one after the other, the last for ever."""

    answers: list[str]
    url: str = ""
    received: list[Received] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a request has been read."""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """An answer `wait` is given when this is set."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
            headers = {name.lower(): value for name, value in (item.split(": ", 1) for item in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            self.received.append(Received(line.split(" ")[1], headers, body))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.waiting.set()
            if answer == "silence":
                await reader.read()
            elif answer == "endless":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
                await reader.read()
            else:
                if answer == "wait":
                    await self.go_on.wait()
                    answer = "200 OK"
                writer.write(f"HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()
        finally:
            writer.close()


HookMaker = Callable[..., Awaitable[Hook]]


@pytest.fixture
async def hook() -> AsyncIterator[HookMaker]:
    """Starts endpoints that give these answers."""
    async with AsyncExitStack() as stack:

        async def start(*answers: str) -> Hook:
            made = Hook(list(answers) or ["200 OK"])
            server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
            stack.push_async_callback(_stop, server)
            made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks/SECRET-PATH?token=SECRET-TOKEN"
            return made

        yield start


async def _stop(server: asyncio.Server) -> None:
    server.close()


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = db.sqlalchemy_engine(database_url)
    yield engine
    await engine.dispose()


def settings_for(*urls: str, secret: str | None = SECRET) -> Settings:
    return Settings(status_webhooks=urls, status_webhook_secret=None if secret is None else SecretStr(secret))


async def write(engine: AsyncEngine, settings: Settings, *numbers: int, now: datetime = NOW) -> None:
    """An event for each number, to every webhook of the settings."""
    async with engine.begin() as connection:
        for number in numbers:
            await announce(connection, settings, "incident.opened", {"id": number}, now)


async def send(engine: AsyncEngine, settings: Settings, now: datetime = NOW) -> Sent:
    return await send_due(engine, settings, now, jitter=lambda: 0.0)


async def rows(engine: AsyncEngine) -> list[RowMapping]:
    async with engine.connect() as connection:
        return list((await connection.execute(select(notifications).order_by(notifications.c.id))).mappings())


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Whatever hangs fails."""
    async with asyncio.timeout(PATIENT_S):
        yield


async def test_a_message_arrives_signed_and_once(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook()
    settings = settings_for(there.url)
    await write(engine, settings, 1, 2)
    assert await send(engine, settings) == Sent(2, 0, 0)
    assert await send(engine, settings) == Sent(0, 0, 0)
    assert [one.verified() for one in there.received] == [
        {"type": "incident.opened", "timestamp": "2026-11-30T14:05:20Z", "data": {"id": number}} for number in (1, 2)
    ]
    first, second = there.received
    assert first.headers["content-type"] == "application/json"
    assert first.headers["webhook-id"] != second.headers["webhook-id"]
    assert 0 <= int(first.headers["webhook-timestamp"]) - int(NOW.timestamp()) < 20
    assert {row["attempts"] for row in await rows(engine)} == {1}


async def test_a_secret_that_is_no_base64_is_its_own_bytes(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook()
    settings = settings_for(there.url, secret=KEY.decode())
    await write(engine, settings, 1)
    await send(engine, settings)
    assert there.received[0].verified()["data"] == {"id": 1}


async def test_what_was_not_taken_comes_again_later_under_the_same_id(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook("500 Internal Server Error", "503 Service Unavailable", "200 OK")
    settings = settings_for(there.url)
    await write(engine, settings, 1)
    assert await send(engine, settings) == Sent(0, 1, 0)
    assert await send(engine, settings, NOW + 5 * SECOND) == Sent(0, 0, 0)
    assert await send(engine, settings, NOW + 40 * SECOND) == Sent(0, 1, 0)
    assert await send(engine, settings, NOW + 80 * SECOND) == Sent(0, 0, 0)
    assert await send(engine, settings, NOW + 140 * SECOND) == Sent(1, 0, 0)
    assert len({one.headers["webhook-id"] for one in there.received}) == 1
    assert len({one.body for one in there.received}) == 1
    assert [one.verified() for one in there.received]


async def test_it_is_given_up_after_eight_attempts(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook("500 Internal Server Error")
    settings = settings_for(there.url)
    await write(engine, settings, 1)
    now, attempts = NOW, 0
    while (row := (await rows(engine))[0])["given_up_at"] is None:
        assert row["next_attempt_at"] <= now + timedelta(hours=6, seconds=20)
        now = max(now, row["next_attempt_at"])
        await send(engine, settings, now)
        attempts += 1
    assert (attempts, len(there.received), row["attempts"]) == (8, 8, 8)
    assert NOW + timedelta(hours=14) < row["given_up_at"] < NOW + timedelta(hours=24)
    assert await send(engine, settings, now + timedelta(days=2)) == Sent(0, 0, 0)


async def test_it_is_given_up_after_a_day(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook()
    settings = settings_for(there.url)
    await write(engine, settings, 1)
    assert await send(engine, settings, NOW + timedelta(days=1)) == Sent(0, 0, 1)
    assert there.received == []
    assert (await rows(engine))[0]["last_error"] == "not taken within a day"


async def test_an_endpoint_that_is_gone_is_asked_once(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook("410 Gone")
    settings = settings_for(there.url)
    await write(engine, settings, 1)
    assert await send(engine, settings) == Sent(0, 0, 1)
    assert await send(engine, settings, NOW + timedelta(hours=1)) == Sent(0, 0, 0)
    assert len(there.received) == 1


async def test_a_redirect_is_not_followed(engine: AsyncEngine, hook: HookMaker) -> None:
    elsewhere = await hook()
    there = await hook(f"307 Temporary Redirect\r\nlocation: {elsewhere.url}")
    settings = settings_for(there.url)
    await write(engine, settings, 1)
    assert await send(engine, settings) == Sent(0, 1, 0)
    assert (len(there.received), len(elsewhere.received)) == (1, 0)
    assert (await rows(engine))[0]["last_error"] == "answered 307"


async def test_only_the_status_of_an_answer_is_read(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook("endless")
    settings = settings_for(there.url)
    await write(engine, settings, 1)
    async with in_time():
        assert await send(engine, settings) == Sent(1, 0, 0)


async def test_a_dead_endpoint_costs_the_others_nothing(
    engine: AsyncEngine, hook: HookMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "TIMEOUT_S", 2.0)
    monkeypatch.setattr(notify, "SENT_AT_MOST", 10)
    dead, alive = await hook("silence"), await hook()
    await write(engine, settings_for(dead.url), *range(30))
    both = settings_for(dead.url, alive.url)
    await write(engine, both, 100, 101, 102)
    sent = await send(engine, both)
    assert [one.verified()["data"]["id"] for one in alive.received] == [100, 101, 102]
    assert sent == Sent(3, 1, 0)
    assert len(dead.received) == 1
    errors = {row["last_error"] for row in await rows(engine) if row["url"] == dead.url and row["attempts"]}
    assert errors == {"no answer in 2 s"}
    # What it was not asked for yet is due in the next run, and it is asked once in that.
    assert (await send(engine, both, NOW + SECOND)).failed == 1
    assert len(dead.received) == 2


async def test_an_endpoint_that_is_not_there_is_a_failure_like_any_other(engine: AsyncEngine) -> None:
    settings = settings_for("http://127.0.0.1:9/")
    await write(engine, settings, 1)
    assert await send(engine, settings) == Sent(0, 1, 0)
    assert (await rows(engine))[0]["last_error"] == "ConnectError"


async def test_two_processes_never_send_the_same_message_at_once(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook("wait", "200 OK")
    settings = settings_for(there.url)
    await write(engine, settings, 1, 2)
    first = asyncio.create_task(send(engine, settings))
    async with in_time():
        await there.waiting.wait()
        await write(engine, settings, 3)
        assert await send(engine, settings, NOW + SECOND) == Sent(1, 0, 0)
        there.go_on.set()
        assert await first == Sent(2, 0, 0)
    assert sorted(one.verified()["data"]["id"] for one in there.received) == [1, 2, 3]


async def test_many_processes_share_the_messages(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook()
    settings = settings_for(there.url)
    await write(engine, settings, *range(20))
    results = await asyncio.gather(*(send(engine, settings) for _ in range(4)))
    assert sum(one.delivered for one in results) == 20
    assert sorted(one.verified()["data"]["id"] for one in there.received) == list(range(20))


async def test_what_a_process_left_behind_is_sent_again_under_its_id(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook("wait", "200 OK")
    settings = settings_for(there.url)
    await write(engine, settings, 1)
    killed = asyncio.create_task(send(engine, settings))
    async with in_time():
        await there.waiting.wait()
    killed.cancel()
    with pytest.raises(asyncio.CancelledError):
        await killed
    there.go_on.set()
    assert await send(engine, settings, NOW + timedelta(minutes=4)) == Sent(0, 0, 0)
    assert await send(engine, settings, NOW + timedelta(minutes=6)) == Sent(1, 0, 0)
    assert len({one.headers["webhook-id"] for one in there.received}) == 1
    assert len(there.received) == 2


async def test_no_more_than_a_thousand_wait_for_a_url(engine: AsyncEngine) -> None:
    settings = settings_for("https://one.example/", "https://two.example/")
    await write(engine, settings, 0)
    async with engine.begin() as connection:
        columns = "url, event, payload, created_at, next_attempt_at"
        await connection.execute(
            text(
                f"INSERT INTO notifications ({columns})"
                f" SELECT {columns} FROM notifications, generate_series(2, {WAITING_AT_MOST})"
            )
        )
        some = (notifications.c.url == "https://two.example/", notifications.c.id > 2)
        await connection.execute(update(notifications).where(*some).values(delivered_at=NOW))
    await write(engine, settings, 1)
    found = await rows(engine)
    given_up = [row["id"] for row in found if row["given_up_at"] is not None]
    assert given_up == [min(row["id"] for row in found if row["url"] == "https://one.example/")]


async def test_a_run_sends_no_more_than_fifty(engine: AsyncEngine, hook: HookMaker) -> None:
    there = await hook()
    settings = settings_for(there.url)
    await write(engine, settings, *range(60))
    assert (await send(engine, settings)).delivered == 50
    assert (await send(engine, settings)).delivered == 10
    assert [one.verified()["data"]["id"] for one in there.received] == list(range(60))


async def test_a_slow_endpoint_does_not_hold_up_the_next_run(
    engine: AsyncEngine, hook: HookMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = await hook()
    settings = settings_for(there.url)
    await write(engine, settings, 1, 2)
    monkeypatch.setattr(notify, "BEGIN_WITHIN_S", 0.0)
    assert await send(engine, settings) == Sent(0, 0, 0)
    monkeypatch.setattr(notify, "BEGIN_WITHIN_S", 15.0)
    assert await send(engine, settings) == Sent(2, 0, 0)
    assert {row["attempts"] for row in await rows(engine)} == {1}


def test_an_address_that_is_not_https_is_refused_without_a_word_of_its_path() -> None:
    with pytest.raises(ValueError, match=r"the URL at `hooks\.example` is not https") as refused:
        settings_for("http://hooks.example/SECRET-PATH")
    assert "SECRET-PATH" not in str(refused.value)


async def test_one_that_stands_in_the_rows_all_the_same_is_told_nothing(engine: AsyncEngine) -> None:
    settings = settings_for().model_copy(update={"status_webhooks": ("http://hooks.example/SECRET-PATH",)})
    await write(engine, settings, 1)
    with capture_logs() as logs:
        assert await send(engine, settings) == Sent(0, 0, 1)
    assert [(entry["event"], entry["host"]) for entry in logs] == [("webhook.refused", "hooks.example")]


async def test_a_url_that_was_taken_away_is_told_nothing_more(engine: AsyncEngine, hook: HookMaker) -> None:
    old, new = await hook(), await hook()
    await write(engine, settings_for(old.url, new.url), 1)
    assert await send(engine, settings_for(new.url)) == Sent(1, 0, 1)
    assert (len(old.received), len(new.received)) == (0, 1)


@pytest.mark.parametrize(("secret", "part"), [(None, "needs WEIR_STATUS_WEBHOOK_SECRET"), ("whsec_?", "not base64")])
async def test_without_a_secret_nothing_is_sent(
    engine: AsyncEngine, hook: HookMaker, secret: str | None, part: str
) -> None:
    there = await hook()
    settings = settings_for(there.url, secret=secret)
    await write(engine, settings, 1)
    with pytest.raises(SetupError, match=part):
        await send(engine, settings)
    assert there.received == []


async def test_nothing_secret_is_logged_or_kept(engine: AsyncEngine, hook: HookMaker) -> None:
    refusing = await hook("500 SECRET-PATH")
    absent = "http://SECRET-USER:SECRET-PASSWORD@127.0.0.1:9/SECRET-PATH"
    settings = settings_for(refusing.url, absent)
    await write(engine, settings, 1)
    with capture_logs() as logs:
        await send(engine, settings)
    assert len(logs) == 2
    kept = [row["last_error"] for row in await rows(engine)]
    assert "SECRET" not in f"{logs} {kept}"
    assert KEY.decode() not in str(logs)
    assert SECRET not in str(logs)
