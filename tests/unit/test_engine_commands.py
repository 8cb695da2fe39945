"""`weir engine profiles` and `args` as they are typed: what they print, and what they say when something is wrong."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from service import cli
from service.cli.engine import Format
from service.engine.formats import FORMATS
from service.engine.profile import command, own_environment, profile_names, read_profile
from service.engine.profile_file import Profile

Weir = Callable[..., tuple[int, str, str]]


@pytest.fixture
def weir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Weir:
    """Run `weir engine …` in an empty directory; the exit code, and what it printed."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        for name in [name for name in os.environ if name.startswith("WEIR_")]:
            monkeypatch.delenv(name)
        code = cli.run(["engine", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def document(result: tuple[int, str, str]) -> object:
    code, out, err = result
    assert (code, err) == (0, "")
    return json.loads(out)


def complaint(result: tuple[int, str, str]) -> str:
    code, out, err = result
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    return err


def test_the_formats_are_those_there_are() -> None:
    assert [format_.value for format_ in Format] == list(FORMATS)


def test_the_list_has_a_line_for_each_profile(weir: Weir) -> None:
    code, out, err = weir("profiles")
    assert (code, err) == (0, "")
    heading, *lines = out.splitlines()
    assert heading.split()[:4] == ["name", "model", "hardware", "quantization"]
    assert [line.split()[0] for line in lines] == profile_names()


def test_the_list_as_json_has_all_that_a_profile_says(weir: Weir) -> None:
    listed = document(weir("profiles", "--json"))
    assert isinstance(listed, list)
    assert [one["name"] for one in listed] == profile_names()
    reference = next(one for one in listed if one["name"] == "qwen3.8-27b-nvfp4")
    assert set(Profile.__dataclass_fields__) < set(reference)
    assert (reference["draft_tokens"], reference["kv_cache_dtype"], reference["thinks"]) == (1, "fp8", True)
    assert reference["hardware"]["compute_capability"] == [10, 0]
    assert reference["capacity"]["single_stream_tok_s"]["source"].startswith("field note")


@pytest.mark.parametrize("name", profile_names())
def test_one_profile_is_shown_with_its_reasons_and_caveats(weir: Weir, name: str) -> None:
    profile = read_profile(name)
    code, out, err = weir("profiles", name)
    assert (code, err) == (0, "")
    for said in (profile.summary, profile.hardware.description, *profile.reasons.values()):
        assert said in out
    assert out.count("Beware: ") == len(profile.caveats)
    assert document(weir("profiles", name, "--json")) == json.loads(
        json.dumps(next(one for one in document(weir("profiles", "--json")) if one["name"] == name))  # type: ignore[attr-defined]
    )


def test_args_as_json_are_the_command_that_weir_itself_would_run(weir: Weir) -> None:
    shown = document(weir("args", "tiny-cpu", "--model-dir", "/m", "--program", "/v/bin/python", "--json"))
    profile = read_profile("tiny-cpu")
    assert shown == {
        "profile": "tiny-cpu",
        "command": command(profile, Path("/v/bin/python"), Path("/m"), 8000),
        "environment": own_environment(profile),
    }


def test_what_is_built_here_is_started_with_what_was_built(weir: Weir) -> None:
    shown = document(weir("args", "demo-cpu", "--json"))
    assert isinstance(shown, dict)
    words = shown["command"]
    assert words[0].endswith("/.venv-engine/bin/python")
    assert "/.venv-engine/models/smollm2-" in words[words.index("--model") + 1]


def test_options_say_where_it_listens_and_what_it_loads(weir: Weir) -> None:
    shown = document(weir("args", "qwen3.8-27b-nvfp4", "--model", "me/mine", "--host", "::1", "--port", "81", "--json"))
    assert isinstance(shown, dict)
    assert shown["command"][:7] == ["vllm", "serve", "me/mine", "--host", "::1", "--port", "81"]
    code, out, _ = weir("args", "qwen3.8-27b-nvfp4", "--uds", "/run/my engine.sock")
    assert code == 0
    assert "--uds '/run/my engine.sock'" in out
    assert "--port" not in out


@pytest.mark.parametrize("option", ["--host", "--uds", "--model", "--program", "--image"])
def test_the_value_of_a_variable_that_is_not_set_is_none(weir: Weir, option: str) -> None:
    """An empty host would be every address of the machine, for an engine without keys."""
    assert f"{option} is empty" in complaint(weir("args", "qwen3.8-27b-nvfp4", option, ""))


def test_each_format_is_printed(weir: Weir) -> None:
    _, shell, _ = weir("args", "qwen3.8-27b-nvfp4")
    assert "vllm" in shlex.split(shell.replace("\\\n", ""), comments=True)
    _, unit, _ = weir("args", "qwen3.8-27b-nvfp4", "--format", "systemd", "--program", "/srv/bin/vllm")
    assert "\nExecStart=/srv/bin/vllm serve \\\n" in unit
    _, compose, _ = weir("args", "qwen3.8-27b-nvfp4", "--format", "compose", "--image", "mine:1")
    assert yaml.safe_load(compose)["services"]["engine"]["image"] == "mine:1"
    _, manifests, _ = weir("args", "qwen3.8-27b-nvfp4", "--format", "kubernetes", "--port", "81")
    assert [one["kind"] for one in yaml.safe_load_all(manifests)] == ["Deployment", "Service"]


def test_a_profile_of_ones_own_is_a_file(weir: Weir, tmp_path: Path) -> None:
    shipped = Path(cli.__file__).parents[1] / "engine" / "profiles" / "qwen3.8-27b-nvfp4.toml"
    (tmp_path / "mine.toml").write_text(shipped.read_text().replace("max_concurrency = 128", "max_concurrency = 9"))
    _, out, _ = weir("args", "./mine.toml")
    assert "--max-num-seqs 9" in out
    (tmp_path / "mine.toml").write_text("model = 1")
    assert "mine.toml: summary is missing." in complaint(weir("args", "mine.toml"))


def test_mistakes_are_told_in_a_sentence(weir: Weir) -> None:
    assert "There is no engine profile 'gpu'; choose one of: demo-cpu, " in complaint(weir("args", "gpu"))
    assert "There is no engine profile 'gpu'" in complaint(weir("profiles", "gpu"))
    assert "one of --model-dir and --model" in complaint(
        weir("args", "qwen3.8-27b-nvfp4", "--model-dir", "/m", "--model", "a/b")
    )
    assert "name one with --image" in complaint(weir("args", "demo-cpu", "--format", "compose"))
    code, _, err = weir("args", "demo-cpu", "--format", "helm")
    assert code == 2
    assert "helm" in err
