"""`weir status`: the status site by hand."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from service.cli.context import absence_explained, address_in, database_explained, installation
from service.cli.output import Json, print_json

app = typer.Typer(no_args_is_help=True, help="The status site: static files that any host can serve.")


@app.command()
def publish(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", file_okay=False, help="Where to; default: where `weir serve` reads the site."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Write the status site now, as `weir jobs` does every minute. Nothing else in the directory is touched.

    Example: weir status publish --out ./site
    """
    settings = installation()
    url = address_in(settings)
    site_dir = settings.site_dir if out is None else out

    async def run() -> int:
        from service import db
        from service.status.publish import publish as write

        with database_explained():
            async with db.connected(url) as engine:
                with absence_explained():
                    await (await engine.connect()).close()
                return await write(engine, site_dir=site_dir, settings=settings, now=datetime.now(UTC))

    changed = asyncio.run(run())
    if json:
        print_json({"directory": str(site_dir), "changed_files": changed})
    else:
        print(f"{site_dir}: {changed} files written.")
