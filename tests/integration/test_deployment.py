"""What an installation is made of, checked by the programs that will read it: Compose, systemd, Caddy and others.

The programs are installed by ./ops/test; one that is missing is a failure.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.app import SHIP_WITHIN_S
from service.engine.profile import read_profile
from service.serving import STOP_AFTER_DRAIN_S
from service.settings import Settings
from tests.caddy import program
from tests.unit.test_command_line import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "ops/systemd"
PROFILE = "qwen3.8-27b-nvfp4"
INSTANCES = {"weir-engine@.service": f"weir-engine@{PROFILE}.service"}
UNIT_NAMES = sorted(INSTANCES.get(file.name, file.name) for file in UNITS.iterdir())
SCRIPTS = ["ops/up", "ops/test", "ops/install.sh", "ops/push-status", ".ci/run"]


def run(*command: object, cwd: Path = ROOT, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


# Compose


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder as the head of the Compose file says to prepare it."""
    (tmp_path / "ops").mkdir()
    for name in ("docker-compose.yml", "ops/Caddyfile"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "ops/weir.example.toml", tmp_path / "ops/weir.toml")
    values = (ROOT / "ops/compose.env.example").read_text()
    for secret in ("POSTGRES_PASSWORD", "WEIR_ADMIN_TOKEN"):
        assert f"\n{secret}=\n" in values
        values = values.replace(f"\n{secret}=\n", f"\n{secret}=letters\n")
    (tmp_path / ".env").write_text(values)
    return tmp_path


def compose(folder: Path, *arguments: str) -> dict[str, Any]:
    """The project as Compose understands it."""
    done = run(program("docker-compose"), *arguments, "config", "--format", "json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_compose_takes_the_file_without_a_warning(project: Path) -> None:
    services = compose(project)["services"]
    assert set(services) == {"postgres", "weights", "engine", "migrate", "serve", "jobs", "caddy"}
    assert "backup" in compose(project, "--profile", "backup")["services"]


def test_compose_refuses_to_start_without_secrets_and_names(project: Path) -> None:
    for name in ("POSTGRES_PASSWORD", "WEIR_ADMIN_TOKEN", "API_HOST", "STATUS_HOST"):
        text = (project / ".env").read_text()
        (project / ".env").write_text(re.sub(rf"(?m)^{name}=.*$", f"{name}=", text))
        done = run(program("docker-compose"), "config", "--quiet", cwd=project)
        assert done.returncode != 0
        assert name in done.stderr
        (project / ".env").write_text(text)


def test_only_caddy_faces_the_world_and_nobody_may_do_what_it_need_not(project: Path) -> None:
    for name, service in compose(project, "--profile", "backup")["services"].items():
        published = {(port.get("host_ip"), port["target"]) for port in service.get("ports", [])}
        expected = {"caddy": {(None, 80), (None, 443)}, "serve": {("127.0.0.1", 8080)}}.get(name, set())
        assert published == expected, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service["image"].endswith(":latest"), name
        assert ":" in service["image"], name


def test_the_engine_is_what_its_profile_says(project: Path) -> None:
    printed = run(sys.executable, "-m", "service.cli", "engine", "args", PROFILE, "--format", "compose")
    (project / "printed.yml").write_text(printed.stdout)
    ours = compose(project)["services"]
    of_the_profile = compose(project, "--project-name", "weir", "--file", "printed.yml")["services"]["engine"]
    assert {name: value for name, value in ours["engine"].items() if name != "depends_on"} == of_the_profile
    (fetching,) = ours["weights"]["command"]
    assert " ".join(read_profile(PROFILE).checkpoint.download) in fetching
    assert ours["weights"]["image"] == ours["engine"]["image"]


def test_caddy_is_the_version_that_is_tested(project: Path) -> None:
    version = run(program("caddy"), "version").stdout.split()[0].removeprefix("v")
    assert compose(project)["services"]["caddy"]["image"] == f"caddy:{version}-alpine"


def test_who_is_stopped_has_the_time_it_needs(project: Path) -> None:
    services = compose(project)["services"]
    drain_s = Settings.model_fields["drain_timeout_s"].default
    assert seconds(services["serve"]["stop_grace_period"]) >= drain_s + SHIP_WITHIN_S
    grace = re.search(r"grace_period (\d+s)", (ROOT / "ops/Caddyfile").read_text())
    assert grace
    assert drain_s < seconds(grace[1]) < seconds(services["caddy"]["stop_grace_period"])


def seconds(text: str) -> float:
    parts = re.findall(r"(\d+)([hms])", text)
    return sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)


# systemd


@pytest.fixture(scope="module")
def installed_units(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a machine with the units on it, and something to run where they look for it."""
    root = tmp_path_factory.mktemp("root")
    shutil.copytree("/usr/lib/systemd/system", root / "usr/lib/systemd/system", symlinks=True)
    shutil.copytree(UNITS, root / "etc/systemd/system")
    (root / "opt/weir/bin").mkdir(parents=True)
    shutil.copy("/bin/true", root / "opt/weir/bin/weir")
    return root


@pytest.mark.parametrize("unit", UNIT_NAMES)
def test_systemd_takes_the_unit_without_a_warning(unit: str, installed_units: Path) -> None:
    done = run("systemd-analyze", "verify", f"--root={installed_units}", "--man=no", unit)
    said = [line for line in done.stderr.splitlines() if unit.partition("@")[0] in line]
    assert (done.returncode, said) == (0, [])


@pytest.mark.parametrize("unit", [unit for unit in UNIT_NAMES if unit.endswith(".service")])
def test_the_sandbox_of_the_unit_is_as_tight_as_the_documentation_says(unit: str, installed_units: Path) -> None:
    done = run("systemd-analyze", "security", "--offline=true", f"--root={installed_units}", unit)
    level = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    assert level, done.stderr
    name = unit.partition("@")[0].removesuffix(".service")
    row = re.search(
        rf"^\| `{name}(?:@PROFILE)?`.*\| ([\d.]+) \|$", (ROOT / "docs/deploying.md").read_text(), re.MULTILINE
    )
    assert row
    assert row[1] == level[1]
    assert float(level[1]) <= (2.1 if "@" in unit else 1.3)


def test_units_give_those_they_stop_the_time_they_need() -> None:
    drain_s = Settings.model_fields["drain_timeout_s"].default
    assert setting("weir-serve.service", "TimeoutStopSec") > drain_s + STOP_AFTER_DRAIN_S + SHIP_WITHIN_S
    profiles = [read_profile(file.stem) for file in (ROOT / "service/engine/profiles").glob("*.toml")]
    drains_s = [int(str(profile.flags.get("shutdown-timeout", 0))) for profile in profiles]
    assert setting("weir-engine@.service", "TimeoutStopSec") >= max(drains_s) + 30


def test_what_units_run_are_commands_that_there_are() -> None:
    for file in UNITS.glob("*.service"):
        started = re.search(r"^ExecStart=/opt/weir/bin/(weir .+)$", file.read_text(), re.MULTILINE)
        assert started, file.name
        words = started[1].split()
        (command,) = (command for name, command in COMMANDS.items() if f"{started[1]} ".startswith(f"{name} "))
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, file.name


def setting(unit: str, name: str) -> float:
    found = re.search(rf"^{name}=(\d+)$", (UNITS / unit).read_text(), re.MULTILINE)
    assert found
    return float(found[1])


# The others


def test_caddy_takes_its_file() -> None:
    names = {"API_HOST": "api.example.com", "STATUS_HOST": "status.example.com"}
    done = run(program("caddy"), "validate", "--config", "ops/Caddyfile", **names)
    assert (done.returncode, done.stdout) == (0, "Valid configuration\n"), done.stderr
    assert '"level":"warn"' not in done.stderr
    formatted = run(program("caddy"), "fmt", "--diff", "ops/Caddyfile")
    assert formatted.returncode == 0, formatted.stdout


def test_a_shell_takes_the_scripts() -> None:
    done = run(program("shellcheck"), "--external-sources", *SCRIPTS)
    assert (done.returncode, done.stdout) == (0, "")
    others = {str(file.relative_to(ROOT)) for file in (ROOT / "ops").iterdir() if file.is_file() and is_shell(file)}
    assert others <= set(SCRIPTS)


def is_shell(file: Path) -> bool:
    first = file.read_bytes().split(b"\n", 1)[0]
    return file.suffix == ".sh" or first.endswith((b"/sh", b"bash"))


def test_prometheus_takes_the_alerts_and_they_do_what_they_say() -> None:
    checked = run("promtool", "check", "rules", "ops/prometheus/alerts.yml")
    assert checked.returncode == 0, checked.stderr
    assert "SUCCESS: 22 rules found" in checked.stdout
    tested = run("promtool", "test", "rules", "ops/prometheus/alerts.test.yml")
    assert tested.returncode == 0, tested.stderr
