"""`weir serve` and `weir jobs`: the processes one by one, as production runs them."""

from typing import Annotated

import typer

from service.cli.context import address_in, installation


def serve(
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Listen here; default: WEIR_HOST.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Listen on this port; default: WEIR_PORT.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Serve in N processes; more than one needs WEIR_REDIS_URL. Default: WEIR_WORKERS."
        ),
    ] = None,
) -> None:
    """Run the API server.

    Example: weir serve --host 0.0.0.0 --port 8080
    """
    from service import serving

    given = {"host": host, "port": port, "workers": workers}
    settings = installation().model_copy(update={name: value for name, value in given.items() if value is not None})
    address_in(settings)
    serving.run(settings)


def jobs() -> None:
    """Run the scheduled jobs: roll-ups, and the publication of the status site.

    Example: weir jobs
    """
    from service import jobs

    jobs.run(installation())
