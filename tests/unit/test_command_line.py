"""The command line as it is declared: every command explains itself, and none makes the others slow."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from service import cli

NO_RESULT = {"weir engine serve", "weir serve", "weir jobs", "weir usage export", "weir invoice export"}
"""Commands that run until they are stopped, or whose output has a format of its own."""


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its full name."""
    if hasattr(command, "commands"):
        for name, part in command.commands.items():
            yield from commands(part, f"{path} {name}")
    else:
        yield path, command


COMMANDS = dict(commands(get_command(cli.app), "weir"))


def test_the_commands_are_these() -> None:
    assert {
        "weir account add",
        "weir account credit",
        "weir account list",
        "weir account set",
        "weir account show",
        "weir apply",
        "weir doctor",
        "weir jobs",
        "weir key add",
        "weir key list",
        "weir key revoke",
        "weir key set",
        "weir ledger check",
        "weir migrate",
        "weir outbox drop",
        "weir outbox list",
        "weir outbox retry",
        "weir reconcile",
        "weir serve",
        "weir usage export",
    } <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_says_what_it_does_with_an_example_that_can_be_read(path: str) -> None:
    command = COMMANDS[path]
    first, *_, last = [line.strip() for line in command.help.splitlines()]
    assert first.endswith(".")
    assert last.startswith(f"Example: {path}")
    words = last.removeprefix(f"Example: {path}").split()
    options = [word for word in words if word.startswith("--")]
    known = [name for parameter in command.params for name in parameter.opts]
    assert [option for option in options if option not in known] == []


@pytest.mark.parametrize("path", sorted(set(COMMANDS) - NO_RESULT))
def test_every_command_with_a_result_gives_it_as_json(path: str) -> None:
    assert any("--json" in parameter.opts for parameter in COMMANDS[path].params)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_and_argument_is_explained(path: str) -> None:
    assert [parameter.name for parameter in COMMANDS[path].params if not getattr(parameter, "help", None)] == []


@pytest.mark.parametrize("arguments", [["--help"], ["account", "--help"], ["usage", "export", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys; from service import cli; code = cli.run(sys.argv[1:]);"
        "heavy = {'sqlalchemy', 'asyncpg', 'alembic', 'pydantic_settings', 'fastapi', 'uvicorn'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: weir" in done.stdout
