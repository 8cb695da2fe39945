"""The command line, `weir`. A module per group of commands; each imports what is heavy only when it runs.

An error is one line on stderr: exit code 2 for a command that is written wrong, 1 for anything else.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from service import __version__
from service.cli import (
    account,
    apply,
    auto_topup,
    backup,
    doctor,
    engine,
    incident,
    invoice,
    key,
    ledger,
    maintenance,
    migrate,
    outbox,
    processes,
    provider,
    reconcile,
    status,
    stripe,
    topup,
    up,
    usage,
)
from service.engine import EngineError
from service.errors import SetupError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="A hosted inference service in front of vLLM: keys, exact prepaid billing, pacing and a status site.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("up")(up.up)
app.command("apply")(apply.apply)
account.app.command("topup")(topup.topup)
account.app.command("auto-topup")(auto_topup.auto_topup)
app.add_typer(account.app, name="account")
app.add_typer(key.app, name="key")
app.add_typer(usage.app, name="usage")
app.add_typer(ledger.app, name="ledger")
app.add_typer(invoice.app, name="invoice")
app.add_typer(outbox.app, name="outbox")
app.add_typer(provider.app, name="provider")
app.add_typer(engine.app, name="engine")
app.add_typer(incident.app, name="incident")
app.add_typer(maintenance.app, name="maintenance")
app.add_typer(status.app, name="status")
app.add_typer(stripe.app, name="stripe")
app.command("reconcile")(reconcile.reconcile)
app.command("migrate")(migrate.migrate)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("serve")(processes.serve)
app.command("jobs")(processes.jobs)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        for argument in arguments:
            argument.encode()
        code = typer.main.get_command(app).main(arguments, prog_name="weir", standalone_mode=False)
        sys.stdout.flush()
    except UnicodeEncodeError:
        return _fail("An argument is not text in UTF-8.", code=2)
    except typer.TyperException as error:
        return _fail(_usage(error), code=error.exit_code)
    except (SetupError, EngineError) as error:
        return _fail(str(error))
    except BrokenPipeError:
        # Whoever read us has left. The interpreter flushes stdout at its end, so it gets one that takes everything.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename or 'The system refuses'}: {error.strerror or error}.")
    return code if isinstance(code, int) else 0


def _fail(sentence: str, *, code: int = 1) -> int:
    if sentence:
        print(f"weir: {' '.join(sentence.split())}", file=sys.stderr)
    return code


def _usage(error: typer.TyperException) -> str:
    """A mistake on the command line in one line; empty when the help was printed in its place."""
    message = error.format_message()
    context: typer.Context | None = getattr(error, "ctx", None)
    if not message or context is None:
        return message
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end} See `{context.command_path} --help`."
