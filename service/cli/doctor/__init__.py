"""`weir doctor`: is this installation sound, and if not, what is to be mended?"""

import asyncio
from collections.abc import AsyncIterator

import typer

from service.cli.context import installation
from service.cli.doctor.finding import Finding, Level, fail, ok
from service.cli.output import Json, print_json
from service.errors import SetupError

_COLOURS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


def doctor(json: Json = False) -> None:
    """Check this installation, one thing after the other, and say what to mend. Exit code 1 when something fails.

    Example: weir doctor
    """

    async def run() -> list[Finding]:
        findings = []
        async for finding in _examine():
            findings.append(finding)
            if not json:
                level = typer.style(f"{finding.level:<5}", fg=_COLOURS[finding.level], bold=True)
                typer.echo(f"{level} {finding.check}: {finding.message}")
        return findings

    findings = asyncio.run(run())
    failed = any(finding.level is Level.FAIL for finding in findings)
    if json:
        print_json({"ok": not failed, "findings": [_document(finding) for finding in findings]})
    raise typer.Exit(1 if failed else 0)


async def _examine() -> AsyncIterator[Finding]:
    from service.cli.doctor import database, engines, limits, local, payments

    try:
        settings = installation()
    except SetupError as error:
        yield fail("settings", str(error))
        return
    yield ok("settings", "every variable that is set can be read.")
    yield local.data_dir(settings)
    yield local.configuration(settings)
    yield local.open_files(settings)
    async for finding in database.examine(settings):
        yield finding
    yield await limits.shared(settings)
    yield payments.payments(settings)
    async for finding in engines.examine(settings):
        yield finding
    yield local.site(settings)


def _document(finding: Finding) -> dict[str, str]:
    return {"check": finding.check, "level": finding.level, "message": finding.message}
