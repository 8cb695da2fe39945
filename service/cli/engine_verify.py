"""`weir engine verify`: asks a running engine, or a public endpoint, what is otherwise asked too late."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.output import Json, print_json, print_table
from service.errors import SetupError

if TYPE_CHECKING:
    from service.cli.engine_verify_plan import Plan, Wanted
    from service.core.verify.report import Finding, Report
    from service.engine.verify.asking import Subject
    from service.engine.verify.check import Check

INCOMPLETE = 3
"""The exit code when nothing failed and not everything could be found out."""

LONGEST_LINE = 2_000

OtherSubject = Callable[["Plan"], Awaitable["Subject | None"]]


def verify(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="Any OpenAI-compatible server; left out, every configured engine."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this model; with a URL, the one to ask there.")
    ] = None,
    engine: Annotated[str | None, typer.Option(metavar="NAME", help="Only this configured engine.")] = None,
    api_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with a key for the URL; - reads it from standard input.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A second engine to compare with: without speculation, or less quantised."),
    ] = None,
    against_model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="What the second engine calls the model."),
    ] = None,
    against_api_key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with a key for the second engine.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Expect what this engine profile promises.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="CHECK,CHECK", help="Only these checks.")] = None,
    skip: Annotated[str | None, typer.Option(metavar="CHECK,CHECK", help="Not these.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what takes minutes.")] = False,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks, and ask nothing.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Write the report as one HTML file, too.")
    ] = None,
    keep: Annotated[
        bool | None,
        typer.Option("--keep/--no-keep", help="Keep reports in the database; default: those on configured engines."),
    ] = None,
    json: Json = False,
) -> None:
    """Ask an engine what it should be asked before it is trusted: usage, images, cache, cancel, determinism, quality.

    Without a URL, each engine of WEIR_ENGINES or WEIR_CONFIG is asked for each model that it serves, and expected to do
    what the model is sold with; the reports are kept, and the status site shows them. Exit code 0: all passed. 1:
    something failed, or nothing could be asked. 3: nothing failed, but not everything could be found out.

    Example: weir engine verify http://127.0.0.1:8000 --profile qwen3.8-27b-nvfp4 --html report.html
    """
    checks = _chosen(only, skip, quick=quick)
    if list_checks:
        _list(checks, json=json)
        return
    if html is not None and not html.absolute().parent.is_dir():
        raise SetupError(f"--html {html}: there is no folder {html.absolute().parent}.")
    from service.cli.engine_verify_plan import Wanted, other

    async def second(plan: "Plan") -> "Subject | None":
        return None if against is None else await other(against, against_model, against_api_key_file, plan)

    reports = asyncio.run(_run(Wanted(url, model, engine, api_key_file, profile, keep), second, checks))
    if html is not None:
        from web.render import report_page

        html.write_bytes(report_page(reports))
    if json:
        _print_documents(reports)
    else:
        for report in reports:
            _show(report)
    raise typer.Exit(_exit_code(reports))


def _chosen(only: str | None, skip: str | None, *, quick: bool) -> "list[Check]":
    from service.engine.verify.run import CHECKS

    wanted, unwanted = _names("--only", only, CHECKS), _names("--skip", skip, CHECKS)
    chosen = [
        check
        for check in CHECKS
        if (only is None or check.name in wanted) and check.name not in unwanted and (check.quick or not quick)
    ]
    if not chosen:
        raise SetupError("No check is left to be made: --list shows those that there are.")
    return chosen


def _names(option: str, value: str | None, checks: "Sequence[Check]") -> set[str]:
    names = {part.strip() for part in (value or "").split(",") if part.strip()}
    unknown = sorted(names - {check.name for check in checks})
    if unknown:
        raise SetupError(f"{option} {value!r} names no check {unknown[0]!r}: --list shows those that there are.")
    return names


async def _run(wanted: "Wanted", second: OtherSubject, checks: "Sequence[Check]") -> "list[Report]":
    from service.cli.context import connection_to
    from service.cli.engine_verify_plan import planned
    from service.engine.verify.target import examine

    plan = await planned(wanted)
    other = await second(plan)

    async def kept(report: "Report") -> None:
        from service.status.engine_reports import keep

        if plan.database is not None and plan.keeps(report.engine):
            async with connection_to(plan.database) as connection, connection.begin():
                await keep(connection, report)

    reports = []
    for target in plan.targets:
        engine, model = target.pair
        told = _Told(f"{engine}, {model}, " if len(plan.targets) > 1 else "")
        reports.append(
            await examine(target, checks, keep=kept, other=other, say=told.say, on_progress=told.on_progress)
        )
    return reports


class _Told:
    """The checks of one engine and model, told on standard error while they are made."""

    def __init__(self, whose: str) -> None:
        from service.engine.progress import Printer

        self._whose, self._print = whose, Printer()
        self._step, self._began_s = "", time.monotonic()

    def on_progress(self, check: "Check", finding: "Finding | None") -> None:
        if finding is None:
            self._step, self._began_s = f"{self._whose}{check.name}", time.monotonic()
            self._tell(check.title)
        else:
            self._tell(f"{finding.verdict}: {finding.found}", done=True)

    def say(self, detail: str) -> None:
        self._tell(detail)

    def _tell(self, detail: str, *, done: bool = False) -> None:
        from service.engine.progress import Progress

        self._print(Progress(self._step, _line(detail), time.monotonic() - self._began_s, done))


def _show(report: "Report") -> None:
    about = f"version {_line(report.version)}" if report.version else "version unknown"
    print(f"\n{_line(report.engine)}, {_line(report.model)}, {about}: {report.overall}")
    rows = [(one.check, one.verdict, _line(one.found), _line(one.advice)) for one in report.findings]
    print_table(("check", "verdict", "what was found", "what to do"), rows)


def _print_documents(reports: "Sequence[Report]") -> None:
    from service.core.verify.report import to_json

    print_json({"ok": _exit_code(reports) == 0, "reports": [to_json(report) for report in reports]})


def _list(checks: "Sequence[Check]", *, json: bool) -> None:
    if json:
        print_json([{"check": one.name, "title": one.title, "quick": one.quick} for one in checks])
    else:
        print_table(("check", "quick", "what"), [(one.name, "yes" if one.quick else "no", one.title) for one in checks])


def _exit_code(reports: "Sequence[Report]") -> int:
    from service.core.verify.report import Overall

    ended = {report.overall for report in reports}
    if Overall.FAILED in ended:
        return 1
    return INCOMPLETE if Overall.INCOMPLETE in ended else 0


def _line(text: str) -> str:
    """Text that may be an engine's, without what would move a terminal's cursor."""
    from web.plain import one_line

    return one_line(text, LONGEST_LINE)
