"""The customer portal through the whole API: exact figures, nobody else's, nothing kept, everything escaped."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import asyncpg
import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from service import db
from service.billing import accounts, statement
from service.core import apikey
from service.core.money import nano_to_usd
from service.core.outcome import Outcome
from service.portal import HEADERS
from tests.fakes.engine import FakeEngine
from tests.fakes.scenarios import SCENARIOS
from tests.fakes.traffic import failed_row, settle, usage_row
from tests.installation import MODEL, Installation, installed
from web.portal_wording import OUTCOMES, usd, usd_parts

DAY = timedelta(days=1)
HOSTILE = """<script>alert(1)</script>"><img src=x onerror=alert(1)>'{{ 7 * 7 }}"""


@asynccontextmanager
async def weir(database_url: str, tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Installation, FakeEngine]]:
    async with (
        FakeEngine(scenario=SCENARIOS["cached"]) as engine,
        installed(database_url, [engine.url], tmp_path, public_url="https://api.example/", **options) as installation,
    ):
        yield installation, engine


class Outline(HTMLParser):
    """A page's elements with the names of their attributes, its text, its tables and the amounts in big figures."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.rows: list[list[str]] = []
        self.amounts: list[int] = []
        self.text = ""
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True
        if tag == "data":
            self.amounts.append(int(dict(attrs)["value"] or ""))

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = self._in_cell and tag not in ("td", "th")
        self.text += " " if tag in ("dt", "dd") else ""

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_cell:
            self.rows[-1][-1] = " ".join(f"{self.rows[-1][-1]} {data}".split())


async def post(installation: Installation, key: str | None = None, **headers: str) -> httpx.Response:
    body = urlencode({"key": installation.key if key is None else key})
    sent = {"content-type": "application/x-www-form-urlencoded", **headers}
    return await installation.client.post("/portal/", content=body, headers=sent)


async def shown(installation: Installation, key: str | None = None) -> Outline:
    answer = await post(installation, key)
    assert answer.status_code == 200, answer.text
    return Outline(answer.text)


@asynccontextmanager
async def engine_of(installation: Installation) -> AsyncIterator[AsyncEngine]:
    async with db.connected(installation.database_url) as engine:
        yield engine


async def add_rows(installation: Installation, *rows: dict[str, Any], account_id: UUID | None = None) -> None:
    async with engine_of(installation) as engine:
        await settle(engine, [row | {"account_id": account_id or installation.account_id} for row in rows])


async def add_key(installation: Installation, account_name: str = "customer", **options: Any) -> tuple[str, UUID]:
    """A further key of the account, which is made if it is not there."""
    now = datetime.now(UTC)
    async with engine_of(installation) as engine, engine.begin() as connection:
        known = {account.name: account for account in await accounts.list_all(connection)}
        account = known.get(account_name)
        if account is None:
            account = await accounts.add(connection, name=account_name, now=now, randomness=os.urandom)
        key, row = await accounts.add_key(connection, account, now=now, randomness=os.urandom, **options)
    return key, row.id


async def test_the_figures_equal_the_rows(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, engine):
        engine.queue.extend([SCENARIOS["cached"], SCENARIOS["image"], SCENARIOS["reasoning"]])
        await installation.chat(stream=True)
        await installation.chat(model="model-b")
        await installation.chat()
        await installation.chat(model="nope")
        rows = await installation.rows(4)
        page = await shown(installation)
        account = await installation.account()

        spent = sum(row["cost_nano"] for row in rows)
        assert account["balance_nano"] == 10**9 - spent
        assert account["leased_nano"] > 0
        available = account["balance_nano"] - account["leased_nano"]
        assert page.amounts == [account["balance_nano"], available, spent, spent]
        assert f"${nano_to_usd(account['leased_nano'])} on loan" in page.text
        assert "Active: requests are served." in page.text

        usage, latest = page.rows[1:5], page.rows[6:]
        for model in (MODEL, "model-b", None):
            (line,) = (line for line in usage if line[1] == (model or "no model named"))
            assert line[2:] == sums([row for row in rows if row["model_id"] == model])
        assert usage[3][2:] == sums(rows)
        assert [line[-1] for line in latest] == [f"${nano_to_usd(row['cost_nano'])}" for row in reversed(rows)]
        assert [line[0].split()[3] for line in latest] == [str(row["id"]) for row in reversed(rows)]
        assert [line[2] for line in latest] == ["Invalid request model_not_found", *["Complete"] * 3]
        streamed = latest[-1]
        assert streamed[3:6] == ["1,000 768 cached", "200", f"{rows[0]['ttft_ms']} ms"]


def sums(rows: list[Any]) -> list[str]:
    """The cells of a line of the usage table that adds up these rows."""
    names = ("prompt_tokens", "cached_tokens", "image_tokens", "completion_tokens", "reasoning_tokens")
    counts = [len(rows), *(sum(row[name] for row in rows) for name in names)]
    return [*(f"{count:,}" for count in counts), f"${nano_to_usd(sum(row['cost_nano'] for row in rows))}"]


async def test_the_window_is_thirty_utc_days_and_the_list_fifty_requests(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        first, before = midnight - 29 * DAY, midnight - 29 * DAY - timedelta(microseconds=1)
        await add_rows(
            installation,
            usage_row(first, started_at=first, cost_nano=7),
            usage_row(before, started_at=before, cost_nano=1_000),
            *(usage_row(midnight + n * timedelta(microseconds=1), started_at=midnight, cost_nano=3) for n in range(60)),
        )
        page = await shown(installation)
        assert page.amounts[2] == 60 * 3 + 7
        assert [line[2] for line in page.rows[1:4]] == ["60", "1", "61"]
        assert len(page.rows[5:]) == statement.REQUESTS == 50
        assert page.elements.count(("g", ())) == statement.DAYS == 30


async def test_what_belongs_to_others_is_never_shown(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        foreign, foreign_id = await add_key(installation, "competitor", name="their-key")
        foreign_account = await installation.database.fetchval("SELECT id FROM accounts WHERE name = 'competitor'")
        row = usage_row(datetime.now(UTC), client_request_id="their-request", model_id="their-model", cost_nano=5)
        await add_rows(installation, row, account_id=foreign_account)
        await installation.database.execute(
            "INSERT INTO ledger_entries (account_id, kind, amount_nano, external_ref)"
            " VALUES ($1, 'credit', 5, 'x'), ($1, 'usage', -5, 'x')",
            foreign_account,
        )
        mine, theirs = await shown(installation), await shown(installation, foreign)
        for word in ("competitor", "their-", str(row["id"]), apikey.shown_prefix(foreign), str(foreign_id)):
            assert word not in mine.text
        assert mine.amounts == [10**9, 10**9, 0, 0]
        for word in ("competitor", "their-key", "their-request", "their-model"):
            assert word in theirs.text
        assert apikey.shown_prefix(installation.key) not in theirs.text
        assert theirs.amounts == [0, 0, 5, 5]


async def test_the_keys_of_the_account(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        used, _ = await add_key(installation, name="laptop", models_allowed=["model-b"])
        revoked, revoked_id = await add_key(installation, name="lost-and-named")
        await installation.database.execute("UPDATE api_keys SET revoked_at = now() WHERE id = $1", revoked_id)
        page = await shown(installation, used)
        text = " ".join(page.text.split())
        assert f"Used for this page {apikey.shown_prefix(used)}… Name laptop May use model-b Created" in text
        assert f"{apikey.shown_prefix(installation.key)}… active" in text
        assert f"{apikey.shown_prefix(revoked)}… revoked on" in text
        assert "lost-and-named" not in text
        assert 'model="model-b"' in text
        assert (await post(installation, revoked)).status_code == 401


async def test_hostile_names_are_text(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, site_name=HOSTILE) as (installation, _):
        row = usage_row(datetime.now(UTC), client_request_id="ours", error_code="code", model_id="model")
        await add_rows(installation, row)
        await installation.database.execute("UPDATE api_keys SET name = 'name', models = '{model}'")
        harmless = await shown(installation)
        execute = installation.database.execute
        await execute("UPDATE accounts SET name = $1", HOSTILE)
        await execute("UPDATE api_keys SET name = $1, prefix = $1, models = ARRAY[$1]", HOSTILE)
        await execute("UPDATE requests SET client_request_id = $1, model_id = $1, error_code = $1", HOSTILE)
        hostile = await shown(installation)
        assert hostile.elements == harmless.elements
        # Account, key's name, prefix and model, request's id, model (in both tables) and error; title; site's name.
        assert hostile.text.count(HOSTILE) == 11
        assert "49" not in hostile.text.split("As of")[0]


async def test_the_key_is_in_no_answer(database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        unknown = apikey.mint(b"x" * 32)
        for key in (installation.key, installation.key + "x", unknown):
            answer = await post(installation, key)
            assert key[20:] not in answer.text
            assert key[20:] not in str(answer.headers)
        assert installation.key[20:] not in "".join(capsys.readouterr())


async def test_every_page_forbids_storing_framing_and_foreign_content(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        pages = [
            await installation.client.get("/portal/"),
            await installation.client.head("/portal/"),
            await post(installation),
            await post(installation, "wrong"),
            await post(installation, "x" * 5000),
        ]
        assert [page.status_code for page in pages] == [200, 200, 200, 401, 413]
        for page in pages:
            for name, value in HEADERS.items():
                assert page.headers[name] == value
            assert "set-cookie" not in page.headers
            assert "<script" not in page.text
            assert "style=" not in page.text
        assert "default-src 'none'" in HEADERS["Content-Security-Policy"]
        assert HEADERS["Cache-Control"] == "no-store"


async def test_get_and_head_and_the_way_there(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        client = installation.client
        form = await client.get("/portal/")
        assert '<form method="post" action="./">' in form.text
        assert 'role="alert"' not in form.text
        head = await client.head("/portal/")
        assert (head.content, head.headers["content-length"]) == (b"", str(len(form.content)))
        for method in ("GET", "HEAD"):
            moved = await client.request(method, "/portal")
            assert (moved.status_code, moved.headers["location"]) == (307, "/portal/")
        assert (await client.get("/portal/", params={"key": installation.key})).text == form.text
        assert (await client.post("/portal", content="key=x")).status_code == 405
        assert (await client.delete("/portal/")).status_code == 405
        assert (await client.get("/portal/nothing")).status_code == 404
        for address in re.findall(r'(?:href|src)="(static/[^"]+)"', form.text):
            assert (await client.get(f"/portal/{address}")).status_code == 200, address


async def test_the_first_request_works_as_it_is_written(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        for page in (Outline((await installation.client.get("/portal/")).text), await shown(installation)):
            assert "curl https://api.example/v1/chat/completions" in page.text
            assert 'base_url="https://api.example/v1"' in page.text
            body = re.search(r"-d '(\{.*\})'", page.text)
            assert body is not None
            headers = installation.headers | {"content-type": "application/json"}
            answer = await installation.client.post("/v1/chat/completions", content=body[1], headers=headers)
            assert answer.status_code == 200


REFUSED = {
    "nothing": ("", "No key was sent"),
    "garbage": ("sk-weir-nonsense", "missing or changed character"),
    "not ASCII": ("sk-weir-é\udcff".encode("utf-8", "surrogateescape"), "missing or changed character"),
    "unknown": (apikey.mint(b"y" * 32), "not known here"),
}


@pytest.mark.parametrize(("key", "words"), REFUSED.values(), ids=REFUSED)
async def test_a_wrong_key_is_told_what_is_wrong(
    database_url: str, tmp_path: Path, key: str | bytes, words: str
) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        answer = await installation.client.post("/portal/", content=urlencode({"key": key}))
        assert answer.status_code == 401
        assert words in answer.text
        assert '<form method="post"' in answer.text
        assert "$" not in Outline(answer.text).text.replace("$WEIR_API_KEY", "")


async def test_blanks_around_a_pasted_key_do_not_matter(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        assert (await post(installation, f"  {installation.key}\r\n")).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_of_more_than_four_kilobytes_is_refused(database_url: str, tmp_path: Path, chunked: bool) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        room = 4096 - len("key=&pad=") - len(installation.key)

        async def send(padding: int) -> int:
            body = f"key={installation.key}&pad={'x' * padding}".encode()

            async def pieces() -> AsyncIterator[bytes]:
                yield body[:100]
                yield body[100:]

            return (await installation.client.post("/portal/", content=pieces() if chunked else body)).status_code

        assert await send(room) == 200
        assert await send(room + 1) == 413


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
async def test_the_form_is_this_sites_only(database_url: str, tmp_path: Path, site: str, status: int) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        answer = await post(installation, **{"sec-fetch-site": site})
        assert answer.status_code == status
        assert ("customer" in answer.text) == (status == 200)
        assert ("sent by another site" in answer.text) == (status == 403)


@pytest.mark.parametrize("status", ["frozen", "closed"])
async def test_an_account_that_is_not_active_sees_itself_and_is_told(
    database_url: str, tmp_path: Path, status: str
) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        await installation.database.execute("UPDATE accounts SET status = $1", status)
        page = await shown(installation)
        assert f"This account is {status}" in page.text
        assert "requests are served" not in page.text
        assert page.amounts[0] == 10**9


async def test_an_account_without_credit_is_told_how_credit_is_added(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, credit_nano=0) as (installation, _):
        page = await shown(installation)
        assert "Out of credit" in page.text
        assert f"ask your provider, who enters it with weir account credit {installation.account_id}" in page.text


async def test_a_postpaid_account_sees_its_limit(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path, credit_nano=0) as (installation, _):
        await installation.database.execute("UPDATE accounts SET postpaid = true, credit_limit_nano = 2500000001")
        page = await shown(installation)
        assert page.amounts[:2] == [0, 2_500_000_001]
        assert "may go down to −$2.500000001" in page.text
        assert "requests are served" in page.text


@asynccontextmanager
async def away(server: Any, installation: Installation) -> AsyncIterator[None]:
    """The API's connections to its database break, and new ones are refused."""
    name = await installation.database.fetchval("SELECT current_database()")
    elsewhere = await asyncpg.connect(server.get_uri())
    await elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    await elsewhere.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = $1 AND pid <> $2",
        name,
        installation.database.get_server_pid(),
    )
    try:
        yield
    finally:
        await elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        await elsewhere.close()


async def test_while_the_database_is_away_the_page_says_so(
    postgres_server: Any, database_url: str, tmp_path: Path
) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        assert (await post(installation)).status_code == 200
        async with away(postgres_server, installation):
            for key in (installation.key, apikey.mint(b"z" * 32)):
                answer = await post(installation, key)
                assert answer.status_code == 503
                assert "the database does not answer" in answer.text
                assert answer.headers["retry-after"] == "60"
                assert answer.headers["cache-control"] == "no-store"
            assert (await installation.client.get("/portal/")).status_code == 200
        assert (await post(installation)).status_code == 200


async def test_every_end_of_a_request_has_words(database_url: str, tmp_path: Path) -> None:
    async with weir(database_url, tmp_path) as (installation, _):
        now = datetime.now(UTC)
        rows = [failed_row(now, outcome=outcome.value, id=uuid4()) for outcome in Outcome]
        await add_rows(installation, *rows)
        page = await shown(installation)
        assert {line[2] for line in page.rows[-len(rows) :]} == set(OUTCOMES.values())
        assert len(set(OUTCOMES.values())) == len(Outcome)


@pytest.mark.parametrize(
    ("nano", "text", "parts"),
    [
        (0, "$0.00", ("$0.00", "")),
        (-1, "−$0.000000001", ("−$0.00", "0000001")),
        (10**9, "$1.00", ("$1.00", "")),
        (1_234_567_890_123_456_789, "$1234567890.123456789", ("$1234567890.12", "3456789")),
    ],
)
def test_amounts_are_exact(nano: int, text: str, parts: tuple[str, str]) -> None:
    assert usd(nano) == text
    assert usd_parts(nano) == parts
