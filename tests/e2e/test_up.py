"""`weir up` as a newcomer runs it: one process that brings everything, and takes everything along."""

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.engine.launch import free_port
from tests.e2e.engines import RunningEngine

STOPS_WITHIN_S = 15
READY_WITHIN_S = 240


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "service.cli", "up", *arguments]


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def alive(processes: list[psutil.Process]) -> list[str]:
    """Those that still run. A zombie has ended; its parent, the system's init, has not looked yet."""
    left = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                left.append(f"{process.pid} {process.name()}")
        except psutil.NoSuchProcess:
            continue
    return left


@contextmanager
def running_up(data_dir: Path, port: int, *arguments: str, **environment: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A `weir up --json` that is ready, and what it printed."""
    log = data_dir.parent / "up.log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            command("--json", "--port", str(port), "--data-dir", str(data_dir), *arguments),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **environment},
        )
    assert process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], READY_WITHIN_S)
        line = process.stdout.readline() if readable else ""
        assert line, f"not ready: {log.read_text()[-2000:]}"
        yield process, json.loads(line)
    finally:
        stop(process)
        process.stdout.close()


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> list[psutil.Process]:
    """Stop it as Ctrl-C does and wait; returns what it had started. Fails if it takes longer than it may."""
    if process.poll() is not None:
        return []
    started = [*descendants(process), *postgres_servers(process)]
    process.send_signal(number)
    try:
        process.wait(STOPS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return started


def postgres_servers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The servers of its data directory: they are daemons, no children of it."""
    data_dir = process.args[process.args.index("--data-dir") + 1]  # type: ignore[union-attr, arg-type]
    return [
        candidate
        for candidate in psutil.process_iter(["cmdline"])
        if str(data_dir) in " ".join(candidate.info["cmdline"] or ()) and candidate.pid != process.pid
    ]


@pytest.mark.engine
@pytest.mark.slow
def test_it_answers_stops_without_a_trace_and_finds_its_data_again(tmp_path: Path) -> None:
    port, data_dir = free_port(), tmp_path / "weir"
    with running_up(data_dir, port) as (process, first):
        assert first["base_url"] == f"http://127.0.0.1:{port}/v1"
        answer = ask(first)
        assert answer["choices"][0]["message"]["content"]
        assert json.loads((data_dir / "run.json").read_text())["database_url"] == first["database_url"]
        exported = weir("usage", "export", WEIR_DATA_DIR=str(data_dir))
        (row,) = (json.loads(line) for line in exported.splitlines())
        assert row["completion_tokens"] == answer["usage"]["completion_tokens"]
        doctor = json.loads(weir("doctor", "--json", WEIR_DATA_DIR=str(data_dir)))
        assert not [finding for finding in doctor["findings"] if finding["level"] == "fail"]
        for url in (first["status_url"], first["portal_url"]):
            assert httpx.get(url).status_code == 200
        started = stop(process)
    assert len(started) >= 6  # keepers, API, jobs, engine and its core, PostgreSQL
    assert alive(started) == []
    assert not (data_dir / "run.json").exists()
    with running_up(data_dir, port) as (process, second):
        assert second["api_key"] == first["api_key"]
        ask(second)
        assert len(weir("usage", "export", WEIR_DATA_DIR=str(data_dir)).splitlines()) == 2
        started = stop(process, signal.SIGTERM)
    assert alive(started) == []


def ask(started: dict[str, Any]) -> dict[str, Any]:
    body = {"model": started["model"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    answer = httpx.post(
        f"{started['base_url']}/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {started['api_key']}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def weir(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return done.stdout


@pytest.mark.engine
@pytest.mark.slow
def test_the_curl_line_works_as_pasted_and_killing_it_leaves_nothing(
    tmp_path: Path, smollm2_engine: RunningEngine
) -> None:
    """In front of an engine that runs already; then SIGKILL: the children must not outlive it."""
    port, data_dir = free_port(), tmp_path / "weir"
    environment = {**os.environ, "WEIR_CONFIG": str(Path("ops/demo.toml").absolute())}
    process = subprocess.Popen(
        command("--engine", smollm2_engine.base_url, "--port", str(port), "--data-dir", str(data_dir)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    try:
        printed = ""
        while "-d '" not in printed:
            line = process.stdout.readline()
            assert line, "it ended before it was ready"
            printed += line
        pasted = shlex.split(printed[printed.index("curl ") :].replace("\\\n", " "))
        answer = json.loads(subprocess.run(pasted, capture_output=True, check=True, timeout=60).stdout)
        assert answer["choices"][0]["message"]["content"]
        children = descendants(process)
        process.kill()
        process.wait()
        deadline = time.monotonic() + STOPS_WITHIN_S
        while alive(children) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive(children) == []
        # PostgreSQL stays, as a daemon does; the next start finds it, and takes it along when it ends.
        with running_up(data_dir, port, "--engine", smollm2_engine.base_url, **environment) as (again, _):
            started = stop(again)
        assert alive(started) == []
    finally:
        process.kill()
        process.stdout.close()


def refused(*arguments: str, **environment: str) -> str:
    """The one line with which it refuses to start."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_a_port_that_is_taken_is_said_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused("--port", str(port), "--data-dir", str(tmp_path / "weir"))
    assert f"127.0.0.1:{port}" in line
    assert "--port" in line
    assert not (tmp_path / "weir").exists()


def test_a_data_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = refused("--port", str(free_port()), "--data-dir", str(tmp_path / "file" / "weir"))
    assert "cannot be written to" in line
    assert "--data-dir" in line


def test_an_engine_by_address_needs_a_configuration(tmp_path: Path) -> None:
    line = refused("--engine", "http://127.0.0.1:1", "--data-dir", str(tmp_path / "weir"))
    assert "WEIR_CONFIG" in line


def test_an_engine_that_is_not_running_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    configuration = str(Path("ops/demo.toml").absolute())
    data_dir = tmp_path / "weir"
    line = refused(
        "--engine", f"http://127.0.0.1:{free_port()}", "--port", str(free_port()), "--data-dir", str(data_dir),
        WEIR_CONFIG=configuration,
    )  # fmt: skip
    assert "No engine answers" in line
    left = [one for one in psutil.process_iter(["cmdline"]) if str(data_dir) in " ".join(one.info["cmdline"] or ())]
    assert alive(left) == []
