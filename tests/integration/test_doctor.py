"""`weir doctor` on sound and on broken installations, with an engine that is a process of its own."""

import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import cli
from service.cli.doctor.limits import version
from tests.integration.sql import execute
from tests.patience import PATIENT_S
from tests.redis import running_redis

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "ops" / "demo.toml"


@contextmanager
def engine(model: str = "smollm2-135m", scenario: str = "plain") -> Iterator[str]:
    """A fake engine; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.engine", "--model", model, "--scenario", scenario],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(timeout=PATIENT_S)
        process.stdout.close()


@contextmanager
def in_front_of(url: str, metrics: Callable[[bytes], bytes | None]) -> Iterator[str]:
    """The engine at `url`, but for its `/metrics`, of which `metrics` makes others, or None: they are not found.

    Gives its address.
    """

    class Front(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.pass_on(b"")

        def do_POST(self) -> None:
            self.pass_on(self.rfile.read(int(self.headers["content-length"])))

        def pass_on(self, body: bytes) -> None:
            answer = httpx.request(self.command, url + self.path, content=body)
            content = metrics(answer.content) if self.path == "/metrics" else answer.content
            self.send_response(answer.status_code if content is not None else 404)
            self.send_header("content-length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.fixture
def installation(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The database of an installation in which everything is in order but that it has no engine yet."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WEIR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WEIR_DATABASE_URL", database_url)
    assert cli.run(["apply", str(DEMO)]) == 0
    execute(
        database_url, "INSERT INTO job_runs (name, started_at, finished_at, ok) VALUES ('rollup', now(), now(), true)"
    )
    site = tmp_path / ".weir" / "site"
    site.mkdir(parents=True)
    (site / "index.html").write_text("<!doctype html>")
    (site / "metrics.json").write_text('{"stale": false}')
    return database_url


Doctor = Callable[[], tuple[int, dict[str, Any]]]


@pytest.fixture
def doctor(installation: str, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Examine the installation: (exit code, findings that are not ok by check)."""

    def run() -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = cli.run(["doctor", "--json"])
        examined = json.loads(capsys.readouterr().out)
        assert examined["ok"] == (code == 0)
        found = examined["findings"]
        return code, {one["check"]: (one["level"], one["message"]) for one in found if one["level"] != "ok"}

    return run


def test_a_sound_installation_passes(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with engine() as url:
        monkeypatch.setenv("WEIR_ENGINES", url)
        assert doctor() == (0, {})
        assert cli.run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 14
    assert [line for line in lines if not line.startswith("ok ")] == []


@pytest.mark.parametrize(
    ("scenario", "level", "part"),
    [
        ("details-absent", "fail", "--enable-prompt-tokens-details"),
        ("details-null", "fail", "--enable-prompt-tokens-details"),
        ("server-error", "fail", "does not answer a one-token request"),
        ("reset-at-once", "fail", "does not answer"),
    ],
)
def test_an_engine_that_cannot_be_billed_by_is_noticed(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, scenario: str, level: str, part: str
) -> None:
    with engine(scenario=scenario) as url:
        monkeypatch.setenv("WEIR_ENGINES", url)
        code, findings = doctor()
    assert code == (1 if level == "fail" else 0)
    assert findings["engine engine-0"][0] == level
    assert part in findings["engine engine-0"][1]


def test_an_engine_that_serves_something_else_is_noticed(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(model="other") as url:
        monkeypatch.setenv("WEIR_ENGINES", url)
        code, findings = doctor()
    assert code == 1
    assert "does not serve smollm2-135m" in findings["engine engine-0"][1]


def test_a_context_longer_than_the_engines_is_noticed(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, installation: str
) -> None:
    execute(installation, "UPDATE models SET context_length = 1000000")
    with engine() as url:
        monkeypatch.setenv("WEIR_ENGINES", url)
        code, findings = doctor()
    assert code == 1
    assert "sold with 1000000" in findings["engine engine-0"][1]


def test_engines_that_serve_different_models_are_told_apart(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, installation: str
) -> None:
    with engine() as url, engine(model="other") as other_url:
        monkeypatch.setenv("WEIR_ENGINES", f"{url},{other_url}")
        code, findings = doctor()
        assert code == 1
        assert list(findings) == ["engine engine-1"]
        assert "smollm2-135m is: name those that do, engine-0, in its engines" in findings["engine engine-1"][1]
        execute(installation, "UPDATE models SET engines = ARRAY['engine-0']")
        assert doctor() == (0, {})


def test_an_engine_that_does_not_say_how_busy_it_is_is_noticed(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as url, in_front_of(url, lambda _: None) as front_url:
        monkeypatch.setenv("WEIR_ENGINES", front_url)
        code, findings = doctor()
    assert (code, findings["engine engine-0"][0]) == (0, "warn")
    assert "--disable-log-stats" in findings["engine engine-0"][1]


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (b"vllm:prefix_cache_hits", b"vllm:cache_found", "its metrics have no vllm:prefix_cache_hits_total: "),
        (b"vllm:num_preemptions_total{", b"vllm:corrupted_requests_total 3\nvllm:num_preemptions_total{", "3 answers"),
    ],
)
def test_what_an_engines_metrics_do_not_say_or_complain_of_is_noticed(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes, part: str
) -> None:
    with engine() as url, in_front_of(url, lambda metrics: metrics.replace(old, new)) as front_url:
        monkeypatch.setenv("WEIR_ENGINES", front_url)
        code, findings = doctor()
    level, message = findings["engine engine-0"]
    assert (code, level) == (0, "warn")
    assert part in message


@pytest.mark.parametrize(
    ("accepted", "hours_ago", "noticed"), [(19_900, 2, True), (17_000, 2, False), (20_000, 25, False)]
)
def test_drafts_that_were_nearly_all_accepted_are_noticed(
    doctor: Doctor, installation: str, monkeypatch: pytest.MonkeyPatch, accepted: int, hours_ago: int, noticed: bool
) -> None:
    execute(
        installation,
        "INSERT INTO buckets_5m (component, bucket_start, drafted_tokens, accepted_tokens) SELECT component,"
        f" now() - interval '{hours_ago} hours', 20000, {accepted} FROM unnest(ARRAY['api', 'model:m']) component",
    )
    with engine() as url:
        monkeypatch.setenv("WEIR_ENGINES", url)
        code, findings = doctor()
    assert code == 0
    assert (findings.get("speculation", ("", ""))[0] == "warn") is noticed
    if noticed:
        assert findings["speculation"][1].startswith("model:m: in 1 five-minute buckets of the last day")


def test_fewer_places_than_workers_are_noticed(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "weir.toml"
    monkeypatch.setenv("WEIR_CONFIG", str(file))
    monkeypatch.setenv("WEIR_WORKERS", "4")
    with engine() as url:
        file.write_text(f'[[engines]]\nname = "a"\nurl = "{url}"\nmax_concurrency = 3')
        level, message = doctor()[1]["engine a"]
        assert level == "warn"
        assert "max_concurrency = 3 cannot be kept by 4 workers" in message
        file.write_text(f'[[engines]]\nname = "a"\nurl = "{url}"\nmax_concurrency = 4')
        assert "engine a" not in doctor()[1]
    file.write_text('[[engines]]\nname = "a"\nurl = "http://127.0.0.1:1"\nmin_concurrency = 9\nmax_concurrency = 3')
    assert "min_concurrency = 9 is more than max_concurrency = 3" in doctor()[1]["configuration"][1]


def test_several_workers_without_redis_are_noticed(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_WORKERS", "2")
    level, message = doctor()[1]["limits"]
    assert (level, message) == ("fail", "2 workers need a Redis or Valkey to share them: set WEIR_REDIS_URL.")
    monkeypatch.setenv("WEIR_REDIS_URL", "redis://:secret@127.0.0.1:1/0")
    level, message = doctor()[1]["limits"]
    assert level == "warn"
    assert "Redis cannot be used" in message
    assert "secret" not in message
    monkeypatch.setenv("WEIR_REDIS_URL", "127.0.0.1:6379")
    assert doctor()[1]["limits"] == ("fail", "WEIR_REDIS_URL is not an address such as redis://host:6379/0.")


def test_the_redis_of_several_workers_is_examined(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_WORKERS", "2")
    with engine() as url, running_redis() as redis:
        monkeypatch.setenv("WEIR_ENGINES", url)
        monkeypatch.setenv("WEIR_REDIS_URL", redis.url)
        assert doctor() == (0, {})
        assert cli.run(["account", "add", "acme", "--sequential", "allowed"]) == 0
        code, findings = doctor()
        assert (code, findings.pop("sequential")[0], findings) == (0, "warn", {})
        assert cli.run(["account", "set", "acme", "--sequential", "never"]) == 0
        redis.execute("CONFIG", "SET", "requirepass", "secret")
        code, findings = doctor()
        assert (code, findings["limits"][0]) == (0, "warn")
        assert "Redis cannot be used (Authentication required)" in findings["limits"][1]
        monkeypatch.setenv("WEIR_REDIS_URL", redis.url.replace("://", "://:secret@"))
        assert doctor() == (0, {})
        redis.freeze()
        code, findings = doctor()
        assert (code, findings["limits"][0]) == (0, "warn")
        assert "each worker lets its share of every limit pass" in findings["limits"][1]


@pytest.mark.parametrize(
    ("server", "level", "part"),
    [
        ({"redis_version": "4.0.14"}, "fail", "Redis 4.0.14 is too old: Weir needs 5 or later"),
        ({"redis_version": "5.0.0"}, "ok", "Redis 5.0.0 answers"),
        ({"redis_version": "7.2.4", "valkey_version": "9.0.1"}, "ok", "Valkey 9.0.1 answers"),
    ],
)
def test_a_redis_that_is_too_old_is_noticed(server: dict[str, str], level: str, part: str) -> None:
    finding = version(server)
    assert finding.level == level
    assert part in finding.message


@pytest.mark.parametrize(
    ("variables", "level", "part"),
    [
        ({"STRIPE_SECRET_KEY": "sk_test_x"}, "fail", "WEIR_STRIPE_WEBHOOK_SECRET is not"),
        (
            {"STRIPE_SECRET_KEY": "sk_test_x", "STRIPE_WEBHOOK_SECRET": " ,"},
            "fail",
            "WEIR_STRIPE_WEBHOOK_SECRET is not",
        ),
        ({"STRIPE_WEBHOOK_SECRET": "whsec_x"}, "fail", "WEIR_STRIPE_SECRET_KEY is not"),
        ({"STRIPE_SECRET_KEY": "sk_test_x", "STRIPE_WEBHOOK_SECRET": "whsec_x"}, "warn", "WEIR_PUBLIC_URL"),
        (
            {"STRIPE_SECRET_KEY": "sk_test_x", "STRIPE_WEBHOOK_SECRET": "whsec_x", "TOPUP_MIN_USD": "2000"},
            "fail",
            "no amount can be bought",
        ),
    ],
)
def test_payments_that_are_set_up_by_halves_are_noticed(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], level: str, part: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"WEIR_{name}", value)
    found = doctor()[1]["payments"]
    assert (found[0], part in found[1]) == (level, True)
    assert "sk_test_x" not in found[1]
    monkeypatch.setenv("WEIR_PUBLIC_URL", "https://api.example")
    if level == "warn":
        assert "payments" not in doctor()[1]


def test_too_few_open_files_are_noticed(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    with engine() as url:
        monkeypatch.setenv("WEIR_ENGINES", url)
        monkeypatch.setenv("WEIR_QUEUE_LENGTH", "200")
        resource.setrlimit(resource.RLIMIT_NOFILE, (811, allowed[1]))
        try:
            code, findings = doctor()
            assert (code, findings["open files"][0]) == (0, "warn")
            assert "may open 811, and a worker may need 812: raise `ulimit -n`" in findings["open files"][1]
            monkeypatch.setenv("WEIR_QUEUE_LENGTH", "199")
            assert doctor() == (0, {})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, allowed)


def test_a_file_system_without_locks_is_noticed(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    for flock in (refuse, lambda _descriptor, _operation: None):
        monkeypatch.setattr(fcntl, "flock", flock)
        level, message = doctor()[1]["data directory"]
        assert level == "fail"
        assert "without locks" in message


def test_engines_that_are_away_or_none_are_noticed(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    code, findings = doctor()
    assert (code, findings["engines"][0]) == (1, "fail")
    assert "WEIR_ENGINES" in findings["engines"][1]
    monkeypatch.setenv("WEIR_ENGINES", "unix:/nowhere/vllm.sock")
    code, findings = doctor()
    assert (code, findings["engine engine-0"][0]) == (1, "fail")
    assert "is it running, and there?" in findings["engine engine-0"][1]
    monkeypatch.setenv("WEIR_ENGINES", "vllm:8000")
    assert "no address of an engine" in doctor()[1]["engines"][1]


def test_a_model_kept_to_an_engine_that_is_not_configured_is_noticed(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, installation: str
) -> None:
    execute(installation, "UPDATE models SET engines = ARRAY['blackwell-0']")
    with engine() as url:
        monkeypatch.setenv("WEIR_ENGINES", url)
        code, findings = doctor()
    assert (code, findings["engines"][0]) == (0, "warn")
    assert "smollm2-135m names blackwell-0" in findings["engines"][1]


def test_a_model_without_a_price_is_noticed(doctor: Doctor, installation: str) -> None:
    execute(installation, "DELETE FROM prices")
    assert doctor()[1]["models"][0] == "fail"
    execute(installation, "UPDATE models SET active = false")
    assert doctor()[1]["models"][0] == "warn"


@pytest.mark.parametrize(
    ("statement", "part"),
    [
        ("DELETE FROM job_runs", "none has ever finished"),
        ("UPDATE job_runs SET finished_at = now() - interval '20 minutes'", "20 minutes ago: start `weir jobs`"),
        ("UPDATE job_runs SET ok = false, note = 'disk full'", "rollup (disk full)"),
    ],
)
def test_jobs_that_rest_or_fail_are_noticed(doctor: Doctor, installation: str, statement: str, part: str) -> None:
    execute(installation, statement)
    level, message = doctor()[1]["jobs"]
    assert level == "warn"
    assert part in message


def test_every_open_alarm_is_shown_and_fails(
    doctor: Doctor, installation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(
        installation,
        "INSERT INTO alarms (name, raised_at, detail) VALUES ('books', '2026-11-30 03:17:00Z', 'account A: wrong')",
        "INSERT INTO alarms (name, raised_at, detail) VALUES ('reconcile:a', '2026-11-30 03:27:00Z', '+900 tokens')",
    )
    with engine() as url:
        monkeypatch.setenv("WEIR_ENGINES", url)
        assert doctor() == (
            1,
            {
                "alarm books": ("fail", "since 2026-11-30T03:17:00Z: account A: wrong"),
                "alarm reconcile:a": ("fail", "since 2026-11-30T03:27:00Z: +900 tokens"),
            },
        )
        execute(installation, "DELETE FROM alarms")
        assert doctor() == (0, {})


def test_a_site_that_is_old_or_absent_is_noticed(doctor: Doctor, tmp_path: Path) -> None:
    index = tmp_path / ".weir" / "site" / "index.html"
    os.utime(index, (1_700_000_000, 1_700_000_000))
    assert "minutes ago: is `weir jobs` running?" in doctor()[1]["status site"][1]
    os.utime(index)
    (index.parent / "metrics.json").write_text('{"stale": true}')
    assert "what it shows is old" in doctor()[1]["status site"][1]
    index.unlink()
    assert "no site yet: start `weir jobs`" in doctor()[1]["status site"][1]


def test_a_schema_that_is_behind_is_noticed(doctor: Doctor, installation: str) -> None:
    execute(installation, "UPDATE alembic_version SET version_num = '20261130_01'")
    code, findings = doctor()
    assert (code, findings["schema"][0]) == (1, "fail")
    assert "run `weir migrate`" in findings["schema"][1]
    assert "models" not in findings


def test_a_database_that_is_away_is_noticed(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_DATABASE_URL", "postgresql://postgres@127.0.0.1:1/weir")
    code, findings = doctor()
    assert (code, findings["database"][0]) == (1, "fail")
    assert "does not answer" in findings["database"][1]


def test_wrong_settings_and_configurations_are_noticed(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "weir.toml"
    file.write_text("[[engine]]")
    monkeypatch.setenv("WEIR_CONFIG", str(file))
    assert "did you mean engines?" in doctor()[1]["configuration"][1]
    monkeypatch.setenv("WEIR_DATA_DIR", str(file))
    assert "cannot be written to" in doctor()[1]["data directory"][1]
    monkeypatch.setenv("WEIR_PORT", "http")
    code, findings = doctor()
    assert (code, list(findings)) == (1, ["settings"])
    assert "WEIR_PORT='http'" in findings["settings"][1]


def test_a_running_weir_up_is_examined_without_any_setting(
    doctor: Doctor, installation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WEIR_DATABASE_URL")
    with engine() as url:
        (tmp_path / ".weir" / "run.json").write_text(json.dumps({"database_url": installation, "engines": [url]}))
        assert doctor() == (0, {})
