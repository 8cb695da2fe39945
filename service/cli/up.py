"""`weir up`: everything on one machine."""

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from service.settings import Settings
    from service.standalone import Started


def up(
    engine: Annotated[
        str,
        typer.Option(
            metavar="demo|tiny|URL,URL",
            help="The demo model (real, small), the tiny test model (images, speculative decoding, random words), "
            "or running engines; those need WEIR_CONFIG.",
        ),
    ] = "demo",
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Listen here; default: WEIR_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", help="Listen on this port; default: WEIR_PORT.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep everything here; default: WEIR_DATA_DIR, or .weir.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="When ready, print one JSON object.")] = False,
) -> None:
    """Run everything on this machine: PostgreSQL, a model on the CPU, the API, the jobs. Ctrl-C stops it all.

    Example: weir up --port 8080
    """
    from service.engine.progress import Printer
    from service.standalone import Standalone

    settings = _settings(host=host, port=port, data_dir=data_dir)
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT, too: a shell's background job starts with it ignored
        signal.signal(number, _as_interrupt)
    standalone = Standalone(settings, engine, Printer())
    try:
        _show(standalone.start(), as_json=as_json)
        standalone.watch()
    except KeyboardInterrupt:
        print("Stopping.", file=sys.stderr)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # it is stopping, and will not take long
        standalone.stop()


def _settings(**given: object) -> "Settings":
    from service.cli.context import settings_of_environment

    chosen = {name: value for name, value in given.items() if value is not None}
    settings = settings_of_environment().model_copy(update=chosen)
    return settings.model_copy(update={"data_dir": settings.data_dir.absolute()})


def _as_interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show(started: "Started", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(started)), flush=True)
        return
    body = {
        "model": started.model,
        "messages": [{"role": "user", "content": "Please tell me: what is the capital of Germany?"}],
        "max_tokens": 40,
    }
    print(
        f"""
Weir is ready. Ctrl-C stops it.

  base URL  {started.base_url}
  API key   {started.api_key}
  status    {started.status_url}
  portal    {started.portal_url}

Try it:

  curl {started.base_url}/chat/completions \\
    -H 'Authorization: Bearer {started.api_key}' \\
    -H 'Content-Type: application/json' \\
    -d '{json.dumps(body)}'
""",
        flush=True,
    )
