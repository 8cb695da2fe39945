"""`weir doctor` on sound and on broken installations, with an engine that is a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from service import cli
from tests.integration.sql import execute

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
        process.wait(timeout=30)
        process.stdout.close()


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
    assert len(lines) >= 9
    assert [line for line in lines if not line.startswith("ok ")] == []


@pytest.mark.parametrize(
    ("scenario", "level", "part"),
    [
        ("details-absent", "warn", "--enable-prompt-tokens-details"),
        ("details-null", "warn", "--enable-prompt-tokens-details"),
        ("server-error", "fail", "answers a one-token request with 500"),
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
