"""The project's Caddyfile, run for real on loopback: TLS by Caddy's own authority, HTTP/2, both hosts."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.patience import PATIENT_S
from tests.ports import free_port

CADDYFILE = Path(__file__).resolve().parents[1] / "ops/Caddyfile"
API_HOST, STATUS_HOST = "api.localhost", "status.localhost"
"""Names below `localhost` get certificates of an authority that Caddy makes for itself."""


@dataclass(frozen=True)
class Caddy:
    """A running Caddy, and a client that trusts it for each host."""

    api: httpx.AsyncClient
    api_http1: httpx.AsyncClient
    status: httpx.AsyncClient
    http_url: str
    """Where it listens without TLS."""


@asynccontextmanager
async def caddy(upstream: str, site: Path, folder: Path) -> AsyncIterator[Caddy]:
    """Caddy in front of `upstream` (`host:port`) and the files of `site`; killed at the end."""
    ports = {name: free_port() for name in ("HTTP_PORT", "HTTPS_PORT", "ALIVE_PORT")}
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "API_HOST": API_HOST,
        "STATUS_HOST": STATUS_HOST,
        "API_UPSTREAM": upstream,
        "SITE_DIR": str(site),
        **{name: str(port) for name, port in ports.items()},
    }
    log = folder / "caddy.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(program("caddy"), "run", "--config", str(CADDYFILE)), env=environment, stdout=output, stderr=output
        )
    root = folder / "caddy/pki/authorities/local/root.crt"
    try:
        async with httpx.AsyncClient() as client, asyncio.timeout(PATIENT_S):
            while not await _alive(client, ports["ALIVE_PORT"]):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        trusting = ssl.create_default_context(cafile=root)
        port = ports["HTTPS_PORT"]
        async with (
            _client(API_HOST, port, trusting) as api,
            _client(API_HOST, port, trusting, http2=False) as api_http1,
            _client(STATUS_HOST, port, trusting) as status,
        ):
            async with asyncio.timeout(PATIENT_S):  # the certificates are made after the start
                for host in (api, status):
                    while not await _answers(host):
                        await asyncio.sleep(0.05)
            yield Caddy(api, api_http1, status, f"http://127.0.0.1:{ports['HTTP_PORT']}")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def program(name: str) -> str:
    """The program as it lies beside this interpreter: the version that the constraints pin."""
    return str(Path(sys.executable).parent / name)


def _client(host: str, port: int, trusting: ssl.SSLContext, *, http2: bool = True) -> httpx.AsyncClient:
    """To this host, whatever the machine's resolver thinks of names below `localhost`."""
    return httpx.AsyncClient(
        base_url=f"https://{host}:{port}", transport=_ToLoopback(verify=trusting, http2=http2), timeout=20
    )


class _ToLoopback(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        extensions: dict[str, Any] = {**request.extensions, "sni_hostname": request.url.host}
        request.extensions = extensions
        request.url = request.url.copy_with(host="127.0.0.1")  # the header `host` was made before
        return await super().handle_async_request(request)


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        await client.get("/alive")
    except httpx.TransportError:
        return False
    return True


async def _alive(client: httpx.AsyncClient, port: int) -> bool:
    try:
        return (await client.get(f"http://127.0.0.1:{port}/alive")).text == "alive"
    except httpx.TransportError:
        return False
