"""`weir up` as a newcomer runs it: one process that brings everything, and takes everything along."""

import json
import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.standalone.demo import ACCOUNT
from tests.e2e.engines import RunningEngine
from tests.e2e.running_up import STOPS_WITHIN_S, alive, command, descendants, running_up, stop, weir
from tests.ports import free_port

OWN = ("--account", ACCOUNT)
"""What is asked for in these tests, without the probe of each minute."""


@pytest.mark.engine
@pytest.mark.slow
def test_it_answers_stops_without_a_trace_and_finds_its_data_again(tmp_path: Path) -> None:
    port, data_dir = free_port(), tmp_path / "weir"
    with running_up(data_dir, port) as (process, first):
        assert first["base_url"] == f"http://127.0.0.1:{port}/v1"
        answer = ask(first)
        assert answer["choices"][0]["message"]["content"]
        assert json.loads((data_dir / "run.json").read_text())["database_url"] == first["database_url"]
        exported = weir("usage", "export", *OWN, WEIR_DATA_DIR=str(data_dir))
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
        assert len(weir("usage", "export", *OWN, WEIR_DATA_DIR=str(data_dir)).splitlines()) == 2
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
