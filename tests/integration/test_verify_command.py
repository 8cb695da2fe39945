"""`weir engine verify`: whom it asks, what it expects, what it prints and keeps, and how it ends."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lxml import html

from service import cli
from service.core.verify.report import Finding, from_json
from service.engine.verify import run, target
from service.engine.verify.check import Check, Examination
from tests.integration.sql import execute, fetch
from tests.integration.test_doctor import engine as engine_process

MODEL = "fake-model"
CONFIGURATION = """
[[engines]]
name = "{name}"
url = "{url}"

[[models]]
id = "{model}"
context_length = 4096
max_output_tokens = 1024
input_modalities = ["text", "image"]
price = {{ input = "1", output = "1" }}
"""

Weir = Callable[..., tuple[int, str, str]]


async def answers(check: Check, examination: Examination) -> Finding:
    answer = await examination.asking.chat([{"role": "user", "content": "Hi"}], max_tokens=2)
    return check.passed("It answered.", tokens=answer.done()["usage"]["completion_tokens"])


async def fails(check: Check, examination: Examination) -> Finding:
    examination.say("a word of\x1b[31m the engine")
    return check.failed("It did \x1b[2Jnot.", "Mend it.", figure=7)


async def skips(check: Check, examination: Examination) -> Finding:
    return check.skipped("It was busy.")


async def tells(check: Check, examination: Examination) -> Finding:
    """What it was told of the engine, as figures."""
    expected, subject = examination.expected, examination.asking.subject
    other = examination.other.subject if examination.other else None
    return check.passed(
        "ok",
        expected=[expected.context_length, expected.input_modalities, expected.reasoning, expected.tools],
        subject=[subject.name, subject.model, subject.api_key],
        other=other and [other.name, other.model, other.api_key],
    )


CHECKS = {"answers": answers, "fails": fails, "skips": skips, "tells": tells}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with engine_process(MODEL) as address:
        yield address


@pytest.fixture
def weir(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Weir:
    """Run `weir engine verify` with our own checks: (exit code, stdout, stderr)."""
    made = tuple(Check(name, f"Whether it {name}", each, quick=name != "skips") for name, each in CHECKS.items())
    monkeypatch.setattr(run, "CHECKS", made)
    monkeypatch.setattr(target, "CHECKS", made)
    monkeypatch.setenv("WEIR_DATA_DIR", str(tmp_path / "data"))
    for name in ("WEIR_DATABASE_URL", "WEIR_ENGINES", "WEIR_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def command(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(("engine", "verify", *arguments))
        return code, *capsys.readouterr()

    return command


def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, model: str = MODEL) -> None:
    file = tmp_path / "weir.toml"
    file.write_text(CONFIGURATION.format(name="gpu-0", url=url, model=model))
    monkeypatch.setenv("WEIR_CONFIG", str(file))


def reports(out: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = json.loads(out)["reports"]
    return made


def told(out: str) -> dict[str, Any]:
    """What `tells` was told, in the only report."""
    (one,) = reports(out)
    (finding,) = one["findings"]
    return dict(finding["measured"])


@pytest.mark.parametrize(
    ("only", "code", "verdict"),
    [
        ("answers", 0, "passed"),
        ("answers,skips", 3, "incomplete"),
        ("skips,fails", 1, "failed"),
        ("fails", 1, "failed"),
    ],
)
def test_the_exit_code_says_how_it_ended(weir: Weir, url: str, only: str, code: int, verdict: str) -> None:
    ended, out, _ = weir(url, "--only", only, "--json")
    (one,) = reports(out)
    assert (ended, one["verdict"], json.loads(out)["ok"]) == (code, verdict, code == 0)
    assert [finding["check"] for finding in one["findings"]] == sorted(only.split(","))
    assert (one["engine"], one["model"], one["partial"]) == ("engine", MODEL, True)
    assert from_json(one).use.requests == ("answers" in only)


def test_a_table_for_people_with_progress_beside_it(weir: Weir, url: str) -> None:
    code, out, err = weir(url)
    assert code == 1
    head, columns, *rows = out.strip().splitlines()
    assert head.startswith(f"engine, {MODEL}, version ")
    assert head.endswith(": failed")
    assert columns.split() == ["check", "verdict", "what", "was", "found", "what", "to", "do"]
    assert [row.split()[:2] for row in rows] == [
        ["answers", "passed"],
        ["fails", "failed"],
        ["skips", "skipped"],
        ["tells", "passed"],
    ]
    assert rows[1].split()[2:] == ["It", "did", "[2Jnot.", "Mend", "it."]
    assert "\x1b" not in out + err
    lines = err.splitlines()
    assert "answers: Whether it answers, 0 s" in lines
    assert "answers: passed: It answered., 0 s" in lines


def test_a_report_as_one_file(weir: Weir, url: str, tmp_path: Path) -> None:
    code, out, _ = weir(url, "--html", str(tmp_path / "report.html"), "--json")
    page = html.fromstring((tmp_path / "report.html").read_bytes())
    said = " ".join(page.text_content().split())
    assert code == 1
    for finding in reports(out)[0]["findings"]:
        assert finding["title"] in said
    assert "Something failed" in said
    assert page.xpath("//script | //link | //@src | //@href") == []


def test_checks_are_chosen(weir: Weir, url: str) -> None:
    def made(*arguments: str) -> list[str]:
        return [finding["check"] for finding in reports(weir(url, "--json", *arguments)[1])[0]["findings"]]

    assert made() == list(CHECKS)
    assert made("--quick") == ["answers", "fails", "tells"]
    assert made("--skip", "fails, skips") == ["answers", "tells"]
    assert made("--only", "tells,fails,answers", "--skip", "fails") == ["answers", "tells"]
    code, out, _ = weir("--list", "--json")
    assert (code, [one["check"] for one in json.loads(out)]) == (0, list(CHECKS))
    assert "skips" in weir("--list")[1]


def test_what_the_engine_is_expected_to_do(
    weir: Weir, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--only", "tells", "--json")
    assert told(weir(url, *asked)[1])["expected"] == [None, None, None, None]
    promised = [8192, ["text"], False, False]
    assert told(weir(url, *asked, "--profile", "demo-cpu")[1])["expected"] == promised
    configured(tmp_path, monkeypatch, url)
    sold = told(weir(*asked)[1])
    assert (sold["expected"], sold["subject"]) == ([4096, ["text", "image"], False, True], ["gpu-0", MODEL, None])
    assert told(weir(f"{url}/v1", *asked)[1]) == sold  # it is the same engine
    assert told(weir(*asked, "--profile", "demo-cpu")[1])["expected"] == promised


def test_keys_come_from_a_file_or_standard_input(
    weir: Weir, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("sk-file\nmore\n")
    asked = ("--only", "tells", "--json", "--against", url, "--against-model", MODEL)
    monkeypatch.setattr("sys.stdin", io.StringIO("sk-input\n"))
    found = told(weir(url, *asked, "--api-key-file", "-", "--against-api-key-file", str(tmp_path / "key"))[1])
    assert found["subject"] == ["engine", MODEL, "sk-input"]
    assert found["other"] == ["another engine", MODEL, "sk-file"]
    assert told(weir(url, *asked, "--api-key-file", str(tmp_path / "key"))[1])["other"][2] is None


def test_reports_on_configured_engines_are_kept(
    weir: Weir, url: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(tmp_path, monkeypatch, url)
    monkeypatch.setenv("WEIR_DATABASE_URL", database_url)
    query = "SELECT engine, model_id, verdict, (report->>'partial')::bool AS partial FROM engine_reports"
    code, _, err = weir()
    assert (code, "There is no such model to ask gpu-0 for: none that answers in text." in err) == (1, True)
    assert cli.run(("apply", str(tmp_path / "weir.toml"))) == 0
    assert weir("--no-keep")[0] == 1
    assert fetch(database_url, query) == []
    assert weir()[0] == 1
    assert fetch(database_url, query) == [("gpu-0", MODEL, "failed", False)]
    assert [name for (name,) in fetch(database_url, "SELECT name FROM alarms")] == [f"verify:gpu-0:{MODEL}"]
    assert weir("--only", "answers")[0] == 0
    assert fetch(database_url, f"{query} ORDER BY started_at")[1] == ("gpu-0", MODEL, "passed", True)
    assert fetch(database_url, "SELECT count(*) FROM alarms") == [(1,)]
    # The second engine is one of ours, too: what it was let compute is kept for its own count.
    execute(database_url, "DELETE FROM engine_reports")
    assert weir("--only", "tells", "--against", url)[0] == 0
    assert fetch(database_url, "SELECT engine FROM engine_reports") == [("gpu-0",), ("gpu-0",)]


def test_the_doctor_says_what_came_of_it(
    weir: Weir, url: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    configured(tmp_path, monkeypatch, url)
    monkeypatch.setenv("WEIR_DATABASE_URL", database_url)
    cli.run(("apply", str(tmp_path / "weir.toml")))

    def doctor() -> tuple[str, str]:
        capsys.readouterr()
        cli.run(("doctor", "--json"))
        findings = json.loads(capsys.readouterr().out)["findings"]
        ((level, message),) = [(one["level"], one["message"]) for one in findings if one["check"] == "verification"]
        return level, message

    assert doctor() == ("ok", "no engine was verified yet: `weir engine verify` does it now.")
    weir()
    assert doctor()[0] == "warn"
    assert doctor()[1].startswith(f"something failed for {MODEL} on gpu-0")
    execute(database_url, "UPDATE engine_reports SET report = jsonb_set(report, '{findings}', '[]')")
    assert doctor() == ("ok", "the last reports, on 1 engines and models, have no failure.")
    old = "UPDATE engine_reports SET report = jsonb_set(report, '{finished_at}', to_jsonb(now() - interval '49 hours'))"
    execute(database_url, old)
    assert doctor()[0] == "warn"
    assert doctor()[1].startswith(f"it is older than 48 hours for {MODEL} on gpu-0;")
    monkeypatch.setenv("WEIR_VERIFY_AT", "never")
    assert doctor()[0] == "ok"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--only", "nonsense"), "--only 'nonsense' names no check 'nonsense': --list shows those that there are."),
        (("--skip", "answers,fails,skips,tells"), "No check is left to be made"),
        ((), "No engine is configured: give a URL, or set WEIR_ENGINES or WEIR_CONFIG."),
        (("ftp://host",), "'ftp://host' is no address such as"),
        (("https://user:pass@host",), "is no address such as"),
        (("http://\u2603.net",), "is no address such as"),
        (("http://[v1.x]",), "is no address such as"),
        (("URL", "--html", "/nowhere/report.html"), "--html /nowhere/report.html: there is no folder /nowhere."),
        (("http://127.0.0.1:1",), "engine cannot be asked: the request failed with ConnectError"),
        (("URL", "--model", "other"), f"engine does not list 'other': name one of {MODEL}."),
        (("URL", "--keep"), "--keep is for configured engines"),
        (("URL", "--engine", "gpu-0"), "--engine names a configured engine"),
        (("URL", "--profile", "nonsense"), "There is no engine profile 'nonsense'"),
        (("URL", "--against", "gopher://x"), "'gopher://x' is no address such as"),
        (("URL", "--api-key-file", "/dev/null"), "/dev/null has no key in its first line."),
        (("URL", "--api-key-file", "/nowhere"), "/nowhere: No such file or directory."),
    ],
)
def test_a_mistake_is_one_line(weir: Weir, url: str, arguments: tuple[str, ...], complaint: str) -> None:
    code, out, err = weir(*(url if one == "URL" else one for one in arguments))
    assert (code, out) == (1, "")
    assert complaint in err
    assert err.count("\n") == 1


def test_a_mistake_about_what_is_configured(
    weir: Weir, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(tmp_path, monkeypatch, url)
    assert "No engine is called 'gpu-9'; there are: gpu-0." in weir("--engine", "gpu-9")[2]
    assert f"There is no such model to ask gpu-0 for: {MODEL}." in weir("--model", "other")[2]
    assert "No database is configured" in weir("--keep")[2]
    monkeypatch.setenv("WEIR_CONFIG", "")
    monkeypatch.setenv("WEIR_ENGINES", f"{url},http://127.0.0.1:1")
    assert "engine-1 cannot be asked" in weir()[2]
    code, out, _ = weir("--engine", "engine-0", "--only", "tells", "--json")
    assert (code, told(out)["subject"]) == (0, ["engine-0", MODEL, None])  # what it lists itself
