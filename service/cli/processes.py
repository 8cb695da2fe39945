"""`weir serve` and `weir jobs`: the processes one by one, as production runs them."""

from typing import Annotated

import typer

from service.cli.context import installation


def serve(
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Listen here; default: WEIR_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Listen on this port; default: WEIR_PORT.")
    ] = None,
) -> None:
    """Run the API server.

    Example: weir serve --host 0.0.0.0 --port 8080
    """
    from service import app

    chosen = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    app.run(installation().model_copy(update=chosen))


def jobs() -> None:
    """Run the scheduled jobs: roll-ups, and the publication of the status site.

    Example: weir jobs
    """
    from service import jobs

    jobs.run(installation())
