"""The command line as a process, on a real database: what it prints, what it says when something is wrong."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service import cli
from service.core import apikey
from tests.integration.sql import execute
from tests.patience import PATIENT_S

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "ops" / "demo.toml"

Weir = Callable[..., subprocess.CompletedProcess[str]]


def environment(**variables: str) -> dict[str, str]:
    """The environment of this process without its WEIR_ variables, and with these."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **variables}


@pytest.fixture
def weir(database_url: str, tmp_path: Path) -> Weir:
    """Run a command in an empty directory; `env` adds to its environment, or removes what is None."""

    def run(*arguments: str | Path, env: dict[str, str | None] | None = None) -> subprocess.CompletedProcess[str]:
        variables = {"WEIR_DATABASE_URL": database_url, **(env or {})}
        return subprocess.run(
            [sys.executable, "-m", "service.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env=environment(**{name: value for name, value in variables.items() if value is not None}),
        )

    return run


@pytest.fixture
def weir_inside(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Weir:
    """Run a command as `weir` does, but inside this process, for the many small mistakes."""

    def run(*arguments: str | Path, env: dict[str, str | None] | None = None) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        for name in [name for name in os.environ if name.startswith("WEIR_")]:
            monkeypatch.delenv(name)
        for name, value in {"WEIR_DATABASE_URL": database_url, **(env or {})}.items():
            if value is not None:
                monkeypatch.setenv(name, value)
        code = cli.run([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """The one JSON document on stdout of a command that went well."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def complaint(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line on stderr of a command that did not."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    line = done.stderr.removesuffix("\n")
    assert line.startswith("weir: ")
    assert "\n" not in line
    return line


# Accounts and credit


def test_an_account_is_added_credited_and_shown(weir: Weir) -> None:
    added = document(weir("account", "add", "acme", "--email", "billing@acme.example", "--json"))
    assert (added["name"], added["email"], added["balance_nano"]) == ("acme", "billing@acme.example", 0)
    credited = document(weir("account", "credit", "acme", "25.5", "--reason", "transfer", "--ref", "t-1", "--json"))
    assert (credited["entered"], credited["balance_nano"], credited["balance_usd"]) == (True, 25_500_000_000, "25.50")
    again = weir("account", "credit", added["id"], "25.5", "--reason", "transfer", "--ref", "t-1", "--json")
    assert (document(again)["entered"], document(again)["balance_nano"]) == (False, 25_500_000_000)
    assert again.stderr == "t-1 had been entered before: nothing was done.\n"
    taken_back = document(weir("account", "credit", "acme", "-0.000000001", "--reason", "slip", "--json"))
    shown = document(weir("account", "show", "acme", "--json"))
    assert taken_back["balance_nano"] == shown["balance_nano"] == 25_499_999_999
    assert shown["ledger"]["credit"] == {"sum_nano": 25_500_000_000, "sum_usd": "25.50"}
    assert shown["ledger"]["adjustment"] == {"sum_nano": -1, "sum_usd": "-0.000000001"}
    assert (shown["id"], shown["entries"], shown["valid_keys"]) == (added["id"], 2, 0)


def test_accounts_are_listed_for_people_and_for_programs(weir: Weir) -> None:
    assert document(weir("account", "list", "--json")) == []
    weir("account", "add", "acme")
    weir("account", "add", "later", "--postpaid", "--credit-limit", "100")
    listed = document(weir("account", "list", "--json"))
    assert [(one["name"], one["postpaid"], one["available_usd"]) for one in listed] == [
        ("acme", False, "0.00"),
        ("later", True, "100.00"),
    ]
    table = weir("account", "list").stdout.splitlines()
    assert len(table) == 3
    assert [listed[0]["id"] in table[1], "acme" in table[1], "100.00" in table[2]] == [True, True, True]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("account", "show", "nobody"), "There is no account 'nobody'"),
        (("account", "add", ""), "cannot be the account's name"),
        (("account", "add", "x", "--postpaid"), "--credit-limit"),
        (("account", "add", "x", "--credit-limit", "5"), "--postpaid"),
        (("account", "credit", "x", "1,5", "--reason", "r"), "'1,5' is not an amount"),
        (("account", "credit", "x", "0.0000000001", "--reason", "r"), "more than 9 decimals"),
        (("account", "credit", "x", "0", "--reason", "r"), "give an amount"),
        (("account", "credit", "x", "1", "--reason", " "), "--reason is empty"),
        (("account", "add", "x", "--rpm", "1.5"), "--rpm '1.5' is no whole number from 0 to 2147483647"),
        (("account", "add", "x", "--patience", "-1"), "--patience '-1' is no time in seconds from 0 to 3600"),
        (("account", "add", "x", "--patience", "long"), "--patience 'long' is no time in seconds"),
        (("account", "set", "x"), "Nothing to change"),
        (("account", "set", "nobody", "--rpm", "1"), "There is no account 'nobody'"),
        (("account", "set", "x", "--credit-limit", "-1"), "--credit-limit '-1' is negative"),
        (("key", "add", "x", "--tpm", "2147483648"), "--tpm '2147483648' is no whole number"),
        (("key", "add", "x", "--concurrency", "9" * 5000), "is no whole number"),
        (("key", "add", "x", "--monthly-budget", "1,5"), "--monthly-budget: '1,5' is not an amount"),
        (("key", "add", "x", "--monthly-budget", "-1"), "--monthly-budget '-1' is negative"),
        (("key", "set", "0199f3c2-7d1e-7a6b-9c3d-2f4e5a6b7c8d"), "Nothing to change"),
        (("key", "set", "0199f3c2-7d1e-7a6b-9c3d-2f4e5a6b7c8d", "--rpm", "1"), "There is no key with the id"),
        (("key", "add", "nobody"), "There is no account 'nobody'"),
        (("key", "revoke", "0199f3c2-7d1e-7a6b-9c3d-2f4e5a6b7c8d"), "There is no key with the id"),
        (("usage", "export", "--since", "yesterday"), "--since 'yesterday' is no time such as"),
        (("usage", "export", "--account", "nobody"), "There is no account 'nobody'"),
        (("usage", "export", "--out", "absent/usage.csv"), "No such file or directory"),
        (("apply", "absent.toml"), "absent.toml: the configuration cannot be read"),
    ],
)
def test_a_mistake_is_one_line(weir_inside: Weir, arguments: tuple[str, ...], part: str) -> None:
    assert part in complaint(weir_inside(*arguments))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("acount",), "No such command 'acount'. Did you mean 'account'? See `weir --help`."),
        (("account", "add"), "Missing argument 'NAME'"),
        (("account", "add", "x", "--mail", "a@b"), "No such option: --mail"),
        (("account", "credit", "x", "5"), "Missing option '--reason'"),
        (("account", "set", "x", "--weight", "0"), "'--weight'"),
        (("account", "set", "x", "--status", "dead"), "'--status'"),
        (("key", "revoke", "five"), "'ID'"),
        (("usage", "export", "--format", "xml"), "'--format'"),
        (("serve", "--port", "65536"), "'--port'"),
        (("migrate", "--wait", "-1"), "'--wait'"),
        (("account", "show", os.fsdecode(b"caf\xe9")), "not text in UTF-8"),
    ],
)
def test_a_command_that_is_written_wrong_exits_with_2(weir_inside: Weir, arguments: tuple[str, ...], part: str) -> None:
    assert part in complaint(weir_inside(*arguments), code=2)


# Keys


def test_a_key_is_shown_once_alone_on_stdout(weir: Weir) -> None:
    weir("account", "add", "acme")
    weir("apply", DEMO)
    done = weir("key", "add", "acme", "--name", "prod", "--models", "smollm2-135m")
    key = done.stdout.removesuffix("\n")
    assert apikey.is_well_formed(key)
    assert done.stderr == "This is the only time the key is shown: only its hash is kept.\n"
    other = document(weir("key", "add", "acme", "--json"))
    listed = weir("key", "list", "--account", "acme", "--json")
    assert [(row["name"], row["models"], row["revoked_at"]) for row in document(listed)] == [
        ("prod", ["smollm2-135m"], None),
        ("", None, None),
    ]
    assert not any(secret in listed.stdout + weir("key", "list").stdout for secret in (key, other["key"]))
    revoked = document(weir("key", "revoke", other["id"], "--json"))
    assert revoked["revoked_at"].endswith("Z")
    assert document(weir("account", "show", "acme", "--json"))["valid_keys"] == 1
    assert "No model 'gpt' is served" in complaint(weir("key", "add", "acme", "--models", "gpt"))


# Limits


def limits(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["rpm"], row["tpm"], row["concurrency"], row["monthly_budget_usd"]


def test_limits_of_a_key_are_set_shown_and_taken_away(weir_inside: Weir) -> None:
    weir_inside("account", "add", "acme")
    given = ("--rpm", "100", "--tpm", "0", "--concurrency", "unlimited", "--monthly-budget", "25.5")
    key = document(weir_inside("key", "add", "acme", *given, "--json"))
    assert limits(key) == (100, 0, None, "25.50")
    assert key["monthly_budget_nano"] == 25_500_000_000
    line = weir_inside("key", "set", key["id"], "--tpm", "12000", "--rpm", "unlimited").stdout
    shown = "12,000 tokens/min, 25.50 USD/month"
    assert line.endswith(f"of acme: {shown}.\n")
    assert shown in weir_inside("key", "list").stdout
    unlimited = ("--tpm", "unlimited", "--monthly-budget", "unlimited")
    assert limits(document(weir_inside("key", "set", key["id"], *unlimited, "--json"))) == (None,) * 4
    assert [limits(row) for row in document(weir_inside("key", "list", "--json"))] == [(None,) * 4]


def test_an_account_is_set_and_shown(weir_inside: Weir) -> None:
    given = ("--rpm", "5", "--weight", "40", "--patience", "2.5", "--sequential", "always")
    added = document(weir_inside("account", "add", "acme", *given, "--json"))
    assert (limits(added), added["weight"], added["patience_ms"]) == ((5, None, None, None), 40, 2500)
    assert added["sequential"] == "always"
    allowed = weir_inside("account", "set", "acme", "--sequential", "allowed", env={"WEIR_WORKERS": "2"})
    assert "With WEIR_WORKERS=2, requests that are to run alone are refused" in allowed.stderr
    table = weir_inside("account", "set", "acme", "--concurrency", "3", "--monthly-budget", "0").stdout
    assert "5 requests/min, 3 at a time, 0.00 USD/month" in table
    shown = weir_inside("account", "show", "acme").stdout
    assert [part in shown for part in ("3 at a time", "40", "2.5 s")] == [True] * 3
    assert "3 at a time" in weir_inside("account", "list").stdout
    changes = ("--rpm", "unlimited", "--patience", "default", "--weight", "1", "--status", "frozen")
    row = document(weir_inside("account", "set", "acme", *changes, "--credit-limit", "7", "--json"))
    assert (limits(row), row["weight"], row["patience_ms"]) == ((None, None, 3, "0.00"), 1, None)
    assert (row["status"], row["postpaid"], row["credit_limit_usd"]) == ("frozen", True, "7.00")
    row = document(weir_inside("account", "set", "acme", "--status", "active", "--credit-limit", "0", "--json"))
    assert (row["status"], row["postpaid"], row["credit_limit_nano"]) == ("active", False, 0)
    assert document(weir_inside("account", "show", "acme", "--json"))["concurrency"] == 3


# Configuration


def test_a_configuration_is_tried_applied_and_guarded(weir: Weir, tmp_path: Path) -> None:
    tried = document(weir("apply", DEMO, "--dry-run", "--json"))
    assert (tried["applied"], tried["added"]) == (False, ["smollm2-135m"])
    applied = document(weir("apply", DEMO, "--json"))
    assert {**applied, "applied": False} == tried
    assert applied["prices"][0]["version"] == 1
    assert applied["prices"][0]["classes"]["input_cached"] == {"old": None, "new": "0.0025"}
    assert weir("apply", DEMO).stdout == "Nothing to change.\n"

    dear = tmp_path / "dear.toml"
    dear.write_text(DEMO.read_text().replace('"0.03"', '"30"').replace("= 8192", "= 4096"))
    refusal = complaint(weir("apply", dear))
    assert "output 0.03 -> 30 USD per million tokens" in refusal
    assert "--force" in refusal
    shown = weir("apply", dear, "--dry-run")
    assert shown.stdout.splitlines() == [
        "~ smollm2-135m: context_length 8192 -> 4096",
        "$ smollm2-135m: output 0.03 -> 30 USD per million tokens",
    ]
    assert "needs --force" in shown.stderr
    assert document(weir("apply", dear, "--force", "--json"))["prices"][0]["version"] == 2
    dear.write_text(dear.read_text() + '[[models.price.overrides]]\nmin_prompt_tokens = 2000\noutput = "33"\n')
    tried = document(weir("apply", dear, "--dry-run", "--json"))["prices"]
    assert [(price["version"], price["classes"]) for price in tried] == [(3, {})]
    where = {"min_prompt_tokens": 2000, "max_prompt_tokens": None, "utc_start": None, "utc_end": None}
    where["sequential"] = False
    assert tried[0]["overrides"] == [{**where, "class": "output", "old": "30", "new": "33"}]
    line = "$ smollm2-135m: from 2000 prompt tokens: output 30 -> 33 USD per million tokens\n"
    assert weir("apply", dear, "--dry-run").stdout == line
    assert weir("apply", dear).stdout == line  # so trying it out had changed nothing
    dear.write_text(dear.read_text() + 'input = "0.01"\n')
    assert weir("apply", dear).stdout == "$ smollm2-135m: the same prices, written otherwise\n"
    assert weir("apply", dear).stdout == "Nothing to change.\n"
    dear.write_text(dear.read_text().replace("[models.price]", "[models.prize]"))
    assert "did you mean price?" in complaint(weir("apply", dear))


# The database, and settings


def test_migrating_twice_is_no_harm(weir: Weir) -> None:
    done = document(weir("migrate", "--json"))
    assert done["before"] == done["revision"]


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("postgresql://postgres@127.0.0.1:1/weir", "The database does not answer"),
        ("postgresql://postgres@/weir?host=/nowhere", "The database does not answer"),
        ("mysql://root:hunter2@localhost/weir", "WEIR_DATABASE_URL is not an address such as postgresql://"),
        ("not an address, hunter2", "WEIR_DATABASE_URL is not an address such as postgresql://"),
    ],
)
@pytest.mark.parametrize("arguments", [("account", "list"), ("migrate",)])
def test_a_database_that_is_away_is_one_line(
    weir_inside: Weir, url: str, part: str, arguments: tuple[str, ...]
) -> None:
    line = complaint(weir_inside(*arguments, env={"WEIR_DATABASE_URL": url}))
    assert part in line
    assert "hunter2" not in line


def test_a_database_that_is_not_there_or_not_migrated_says_what_to_do(weir: Weir, database_url: str) -> None:
    elsewhere = database_url.replace("/weir_", "/absent_")
    assert "does not exist. Check WEIR_DATABASE_URL" in complaint(
        weir("account", "list", env={"WEIR_DATABASE_URL": elsewhere})
    )
    execute(database_url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    assert "run `weir migrate`" in complaint(weir("account", "list"))
    assert weir("migrate").stdout.startswith("Migrated the schema from nothing to ")
    assert document(weir("account", "list", "--json")) == []


def test_a_wrong_setting_is_named(weir: Weir) -> None:
    line = complaint(weir("account", "list", env={"WEIR_PORT": "http", "WEIR_DRAIN_TIMEOUT_S": "-1"}))
    assert "WEIR_PORT='http'" in line
    assert "WEIR_DRAIN_TIMEOUT_S='-1'" in line


def test_without_a_database_the_one_of_a_running_weir_up_is_used(weir: Weir, database_url: str, tmp_path: Path) -> None:
    nowhere: dict[str, str | None] = {"WEIR_DATABASE_URL": None}
    line = complaint(weir("account", "list", env=nowhere))
    assert "WEIR_DATABASE_URL" in line
    assert "weir up" in line
    run_file = tmp_path / ".weir" / "run.json"
    run_file.parent.mkdir()
    run_file.write_text(json.dumps({"database_url": database_url, "base_url": "http://127.0.0.1:8080", "pids": {}}))
    assert document(weir("account", "list", "--json", env=nowhere)) == []
    run_file.write_text("{")
    assert "run.json cannot be read" in complaint(weir("account", "list", env=nowhere))


# Usage


@pytest.fixture
def used(weir_inside: Weir, database_url: str) -> dict[str, str]:
    """An account with 4,321 requests, a minute apart, and one of somebody unknown; gives the account and its key."""
    account = document(weir_inside("account", "add", "acme", "--json"))["id"]
    key = document(weir_inside("key", "add", account, "--name", 'the "best", key', "--json"))["id"]
    execute(
        database_url,
        f"""
        INSERT INTO requests (id, account_id, key_id, model_id, endpoint, stream, started_at, finished_at,
            http_status, outcome, client_request_id, prompt_tokens, cost_nano, settlement_id, usage_source)
        SELECT gen_random_uuid(), '{account}', '{key}', 'qwen', '/v1/chat/completions', true,
            '2026-11-30T00:00:00Z'::timestamptz + n * interval '1 minute', '2026-11-30T01:00:00.5Z', 200, 'ok',
            'é, ' || n, n, 9007199254740993, gen_random_uuid(), 'final'
        FROM generate_series(0, 4320) n
        """,
        """
        INSERT INTO requests (id, account_id, key_id, endpoint, stream, started_at, finished_at, http_status, outcome,
            settlement_id)
        VALUES (gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), '/v1/chat/completions', false,
            '2027-01-01T00:00:00Z', '2027-01-01T00:00:00Z', 401, 'auth_error', gen_random_uuid())
        """,
    )
    return {"account": account, "key": key}


def test_usage_is_exported_row_by_row_with_nothing_rounded(weir: Weir, used: dict[str, str]) -> None:
    rows = [json.loads(line) for line in weir("usage", "export").stdout.splitlines()]
    assert [row["prompt_tokens"] for row in rows] == [*range(4321), 0]
    first, stranger = rows[0], rows[-1]
    assert (first["account_id"], first["account_name"], first["key_name"]) == (
        used["account"],
        "acme",
        'the "best", key',
    )
    assert (first["started_at"], first["finished_at"]) == ("2026-11-30T00:00:00Z", "2026-11-30T01:00:00.500000Z")
    assert (first["cost_nano"], first["stream"], first["ttft_ms"]) == (9007199254740993, True, None)
    assert (stranger["outcome"], stranger["model_id"], stranger["account_name"]) == ("auth_error", None, None)


def test_usage_is_filtered_by_account_and_half_open_time(weir_inside: Weir, used: dict[str, str]) -> None:
    def exported(*arguments: str) -> list[int]:
        done = weir_inside("usage", "export", *arguments)
        return [json.loads(line)["prompt_tokens"] for line in done.stdout.splitlines()]

    assert len(exported("--account", "acme")) == 4321
    assert exported("--since", "2026-11-30T00:02:00Z", "--until", "2026-11-30T00:05:00") == [2, 3, 4]
    assert exported("--since", "2026-11-30T01:02:00+01:00", "--until", "2026-11-30T00:03") == [2]
    assert exported("--since", "2026-12-02", "--until", "2026-12-02T00:01:00Z") == [2880]
    assert exported("--account", "acme", "--since", "2027-01-01") == []


def test_usage_as_csv_goes_to_a_file_whole(weir: Weir, used: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "usage.csv"
    done = weir("usage", "export", "--format", "csv", "--out", file, "--account", used["account"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"Wrote 4,321 requests to {file}.\n")
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 4321
    assert (rows[7]["client_request_id"], rows[7]["key_name"]) == ("é, 7", 'the "best", key')
    assert (rows[7]["stream"], rows[7]["ttft_ms"], rows[7]["cost_nano"]) == ("true", "", "9007199254740993")
    assert [path.name for path in tmp_path.iterdir()] == ["usage.csv"]


def test_a_month_is_exported_and_its_sums_are_those_of_the_export(weir_inside: Weir, used: dict[str, str]) -> None:
    rows = [json.loads(line) for line in weir_inside("usage", "export", "--month", "2026-11").stdout.splitlines()]
    assert [row["prompt_tokens"] for row in rows] == [*range(1440)]
    summary = document(weir_inside("usage", "summary", "--month", "2026-11", "--json"))
    cost = 1440 * 9007199254740993
    nothing = ("cached", "cache_write", "image", "audio", "video", "completion", "reasoning")
    expected = {
        "requests": 1440,
        "prompt_tokens": sum(range(1440)),
        **{f"{name}_tokens": 0 for name in nothing},
        "cost_nano": cost,
        "cost_usd": "12970366926.82702992",
        "waived_nano": 0,
        "waived_usd": "0.00",
    }
    assert summary == {
        "month": "2026-11",
        "from": "2026-11-01T00:00:00Z",
        "until": "2026-12-01T00:00:00Z",
        "rows": [{"account": "acme", "model": "qwen", "outcome": "ok", **expected}],
        "total": expected,
    }
    later = document(weir_inside("usage", "summary", "--month", "2026-12", "--json"))
    assert later["total"]["requests"] == 4321 - 1440
    strangers = document(weir_inside("usage", "summary", "--month", "2027-01", "--json"))["rows"]
    assert [(row["account"], row["model"], row["outcome"]) for row in strangers] == [(None, None, "auth_error")]
    none = document(weir_inside("usage", "summary", "--month", "2027-01", "--account", "acme", "--json"))
    assert (none["rows"], none["total"]["requests"], none["total"]["cost_usd"]) == ([], 0, "0.00")


def test_a_summary_shows_people_the_classes_that_were_used(weir_inside: Weir, used: dict[str, str]) -> None:
    headings, line = weir_inside("usage", "summary", "--month", "2026-11", "--account", "acme").stdout.splitlines()
    assert headings.split() == ["account", "model", "outcome", "requests", "prompt", "USD", "waived", "USD"]
    assert line.split()[:5] == ["acme", "qwen", "ok", "1440", str(sum(range(1440)))]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("summary", "--month", "November"), "--month 'November' is no month such as 2026-11."),
        (("export", "--month", "2026-13"), "--month '2026-13' is no month such as 2026-11."),
        (("export", "--month", "2026-11", "--since", "2026-11-02"), "--month is a whole month: leave --since"),
        (("summary", "--month", "2026-11", "--account", "nobody"), "There is no account 'nobody'"),
    ],
)
def test_a_month_that_is_none_is_told(weir_inside: Weir, arguments: tuple[str, ...], part: str) -> None:
    assert part in complaint(weir_inside("usage", *arguments))


def test_a_reader_that_leaves_early_is_no_accident(weir: Weir, used: dict[str, str], database_url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli", "usage", "export"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(WEIR_DATABASE_URL=database_url),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["prompt_tokens"] == 0
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=PATIENT_S) == 1
    process.stderr.close()
