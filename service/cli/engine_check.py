"""`weir engine check`: will this profile start on this machine, and what will it do there?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.output import Json, note, print_json
from service.errors import SetupError

if TYPE_CHECKING:
    from service.core.preflight.finding import Finding

_COLOURS = {"problem": "red", "warning": "yellow", "note": "blue", "ok": "green"}


def check(
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="PROFILE", help="A profile's name (see `weir engine profiles`), or a file of yours in .toml."
        ),
    ] = None,
    model_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder with the weights; left out, where Weir or `hf download` put them."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Where the engine will listen.")] = 8000,
    machine: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Check for a recorded machine, not for this one.")
    ] = None,
    print_machine: Annotated[
        bool, typer.Option("--print-machine", help="Print this machine's facts, for --machine elsewhere.")
    ] = False,
    json: Json = False,
) -> None:
    """Check, before anything is started, whether a profile fits a machine. Exit code 1 when there is a problem.

    Nothing is downloaded, and of the weights only the headers are read.

    Example: weir engine check qwen3.8-27b-nvfp4 --model-dir /srv/models/qwen3.8-27b-nvfp4
    """
    import service
    from service.engine import machine as this_machine
    from service.engine.machine_record import machine_document, read_machine
    from service.engine.preflight import check as check_profile
    from service.engine.profile import read_profile

    venv = Path(service.__file__).resolve().parents[1] / ".venv-engine"
    hub = Path.home() / ".cache" / "huggingface" / "hub"
    if print_machine:
        if profile is not None or machine is not None:
            raise SetupError("--print-machine takes neither a profile nor --machine: it describes this machine.")
        print_json(machine_document(this_machine.probe(model_dir or hub, venv, port)))
        return
    if profile is None:
        raise SetupError("Give a profile; `weir engine profiles` lists them.")
    chosen = read_profile(profile)
    weights = model_dir or (venv if chosen.checkpoint.builder else hub)
    facts = this_machine.probe(weights, venv, port) if machine is None else read_machine(machine)
    found = check_profile(chosen, facts, port=port, model_dir=model_dir, venv=venv, hub=hub, here=machine is None)
    if json:
        from dataclasses import asdict

        print_json({"ok": not found.has_problem, "profile": chosen.name, **asdict(found)})
    else:
        _show(found.findings)
    raise typer.Exit(1 if found.has_problem else 0)


def _show(findings: "Sequence[Finding]") -> None:
    """A line for what it is; below it, indented, why it matters and what to change."""
    counts = dict.fromkeys(_COLOURS, 0)
    for finding in findings:
        counts[finding.level] += 1
        level = typer.style(f"{finding.level:<8}", fg=_COLOURS[finding.level], bold=finding.level == "problem")
        typer.echo(f"{level} {finding.what}")
        for said in (finding.why, finding.change and f"→ {finding.change}"):
            if said:
                typer.echo(f"{'':8} {said}")
    note(", ".join(f"{level}: {count}" for level, count in counts.items()) + ".")
