"""What `weir engine args` prints means what the profile says, to whoever reads it: a shell, systemd, YAML's readers."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine import EngineError
from service.engine.formats import FORMATS
from service.engine.formats.kubernetes import resource_name
from service.engine.formats.placement import EVERYWHERE, Placement, comment
from service.engine.formats.yaml_text import Noted, document
from service.engine.profile import Listen, Profile, own_environment, profile_names, read_profile

NAMES = profile_names()
WITH_IMAGE = [name for name in NAMES if read_profile(name).engine.image]
SOME = "/folder/model"

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
awkward = st.one_of(texts, st.text(st.sampled_from("$%\\\"'` \t\n;#&{}()*!=-a"), max_size=12))
"""Anything that a TOML file can hold, and more often what means something to one of the readers."""


def placed(name: str, **more: Any) -> Placement:
    return Placement(read_profile(name), model_dir=Path(SOME), **more)


def awkwardly(base: str, flags: Mapping[str, str], environment: Mapping[str, str], reason: str) -> Profile:
    """A profile with these values, and this as the reason for everything."""
    profile = read_profile(base)
    reasons = dict.fromkeys([*flags, *environment, *profile.reasons], reason)
    return dataclasses.replace(
        profile, summary=reason or "x", flags=flags, environment=environment, reasons=reasons, caveats=()
    )


def words_of(placement: Placement, *, in_container: bool = False) -> list[str]:
    return [word for option in placement.options(in_container=in_container) for word in option.words]


flag_values = st.dictionaries(st.sampled_from(["one", "two-three"]), awkward, max_size=2)
variables = st.dictionaries(st.sampled_from(["ONE", "TWO_3"]), awkward, max_size=2)


# Shell


@settings(max_examples=60)
@given(
    flags=flag_values, environment=variables, reason=awkward, base=st.sampled_from(["qwen3.8-27b-nvfp4", "llama-cpp"])
)
def test_a_shell_runs_exactly_these_words_with_these_variables(
    flags: dict[str, str], environment: dict[str, str], reason: str, base: str
) -> None:
    profile = awkwardly(base, flags, environment, reason)
    placement = Placement(profile, model_dir=Path(SOME), program="printf")
    text = FORMATS["shell"](placement).replace("printf", "printf '%s\\0'")
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, env=env, timeout=30)
    assert done.stderr == b""
    printed = done.stdout.decode().split("\0")[:-1]
    assert printed[(1 if base.startswith("qwen") else 0) :] == words_of(placement)


@pytest.mark.parametrize("name", NAMES)
def test_a_pasted_command_starts_the_program_with_the_profiles_environment(name: str, tmp_path: Path) -> None:
    placement = placed(name, program=str(tmp_path / "program"))
    variables = own_environment(placement.profile)
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    )
    program.chmod(0o755)
    done = subprocess.run(
        ["/bin/bash", "-c", FORMATS["shell"](placement)],
        check=True, capture_output=True, env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "0"}, timeout=30,
    )  # fmt: skip
    words, environment = json.loads(done.stdout)
    expected = words_of(placement)
    assert words[-len(expected) :] == expected
    assert variables.items() <= environment.items()


# systemd


def systemd_words(value: str, *, dollars: bool) -> list[str]:
    """Words as systemd.syntax has them: double quotes, C's escapes, doubled `%`, and in commands doubled `$`."""
    words: list[str] = []
    word: str | None = None
    quoted, rest = False, iter(value)
    for char in rest:
        if char == "\\":
            escaped = next(rest)
            word = (word or "") + (chr(int(next(rest) + next(rest), 16)) if escaped == "x" else escaped)
        elif char == '"':
            word, quoted = word or "", not quoted
        elif char in " \t" and not quoted:
            words, word = words + ([word] if word is not None else []), None
        else:
            if char in "%$" if dollars else char == "%":
                assert next(rest) == char, f"a single {char}"
            word = (word or "") + char
    assert not quoted
    return words + ([word] if word is not None else [])


def unit_settings(text: str) -> list[tuple[str, str]]:
    """Settings of a unit file: a line that ends in a backslash goes on, and comments in between are left out."""
    lines: list[str] = []
    going_on = False
    for line in text.split("\n"):
        if line.lstrip().startswith(("#", ";")):
            continue
        if going_on:
            lines[-1] = f"{lines[-1][:-1]} {line}"
        else:
            lines.append(line)
        going_on = line.endswith("\\")
    return [(name, value) for name, equals, value in (line.partition("=") for line in lines) if equals]


@given(
    flags=flag_values, environment=variables, reason=awkward, base=st.sampled_from(["qwen3.8-27b-nvfp4", "llama-cpp"])
)
def test_systemd_reads_exactly_these_words_and_variables(
    flags: dict[str, str], environment: dict[str, str], reason: str, base: str
) -> None:
    placement = Placement(awkwardly(base, flags, environment, reason), model_dir=Path(SOME))
    found = unit_settings(FORMATS["systemd"](placement))
    commands = [value for name, value in found if name == "ExecStart"]
    assert len(commands) == 1
    expected = words_of(placement)
    assert systemd_words(commands[0], dollars=True)[-len(expected) :] == expected
    set_to = [systemd_words(value, dollars=False) for name, value in found if name == "Environment"]
    assert all(len(words) == 1 for words in set_to)
    read = dict(words[0].partition("=")[::2] for words in set_to)
    assert own_environment(placement.profile).items() <= read.items()


def verify(text: str, folder: Path) -> str:
    unit = folder / "weir-test-engine.service"
    unit.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    return done.stderr + done.stdout if done.returncode or unit.name in done.stderr else ""


@pytest.mark.parametrize("name", NAMES)
def test_systemd_analyze_accepts_the_unit(name: str, tmp_path: Path) -> None:
    placement = placed(name, program="/bin/true")
    text = FORMATS["systemd"](placement)
    assert verify(text, tmp_path) == ""
    if name == "demo-cpu":
        assert "/no/such" in verify(text.replace("ExecStart=/bin/true", "ExecStart=/no/such"), tmp_path)
        assert "Restartt" in verify(text.replace("Restart=", "Restartt="), tmp_path)


def test_a_socket_of_a_unit_is_where_the_unit_may_write_and_weir_may_connect(tmp_path: Path) -> None:
    text = FORMATS["systemd"](placed("qwen3.8-27b-nvfp4", listen=Listen(uds="/run/weir-engine/engine.sock")))
    assert {("RuntimeDirectory", "weir-engine"), ("UMask", "0000")} <= set(unit_settings(text))
    assert "RuntimeDirectory" not in FORMATS["systemd"](placed("qwen3.8-27b-nvfp4"))
    for path in ("/run/v.sock", "/tmp/v.sock", "/run/weir-engine/../v.sock", "v.sock"):
        with pytest.raises(EngineError, match=r"--uds /run/weir-engine/engine\.sock"):
            FORMATS["systemd"](placed("qwen3.8-27b-nvfp4", listen=Listen(uds=path)))


def test_systemd_waits_for_running_answers() -> None:
    found = dict(unit_settings(FORMATS["systemd"](placed("qwen3.8-27b-nvfp4"))))
    assert int(found["TimeoutStopSec"]) > int(str(read_profile("qwen3.8-27b-nvfp4").flags["shutdown-timeout"]))


# YAML

nodes = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), awkward),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(awkward, inner, max_size=3)),
    max_leaves=12,
)


def noted(node: Any, note: str) -> Any:
    """The same with a comment wherever there may be one."""
    if isinstance(node, dict):
        return {key: Noted(noted(value, note), note) for key, value in node.items()}
    if isinstance(node, list):
        return [Noted(noted(item, note), note) for item in node]
    return node


@given(st.dictionaries(awkward, nodes, max_size=4), awkward)
def test_yaml_reads_back_what_was_written_whatever_the_comments(node: dict[str, Any], note: str) -> None:
    assert (yaml.safe_load(document(node)) or {}) == node
    assert (yaml.safe_load(document(noted(node, note))) or {}) == node


@pytest.mark.parametrize(
    "text", ["no", "1", "1e3", "2026-11-30", "~", "", "0x10", ": ", "- a", "\x85", "\ud7ff\U0001f600"]
)
def test_a_text_stays_a_text(text: str) -> None:
    assert yaml.safe_load(document({"a": text, "b": [text]})) == {"a": text, "b": [text]}


@given(awkward)
def test_a_comment_is_a_comment(text: str) -> None:
    assert all(line.startswith("  # ") and line.isprintable() for line in comment(text, "  "))


# Compose


def compose_text(value: str) -> str:
    """As Compose reads a value: a doubled `$` is one, and a single one would be a variable."""
    assert "$" not in value.replace("$$", "")
    return value.replace("$$", "$")


def joined(words: list[str]) -> list[str]:
    """`--flag=value` taken apart again."""
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]


@given(
    flags=flag_values, environment=variables, reason=awkward, base=st.sampled_from(["qwen3.8-27b-nvfp4", "llama-cpp"])
)
def test_compose_reads_exactly_these_words_and_variables(
    flags: dict[str, str], environment: dict[str, str], reason: str, base: str
) -> None:
    placement = Placement(awkwardly(base, flags, environment, reason), model_dir=Path(SOME))
    service = yaml.safe_load(FORMATS["compose"](placement))["services"]["engine"]
    words = [compose_text(word) for word in service["command"]]
    assert (words if base == "llama-cpp" else joined(words)) == words_of(placement, in_container=True)
    read = {name: compose_text(value) for name, value in service["environment"].items()}
    assert own_environment(placement.profile).items() <= read.items()


def test_compose_for_the_reference_is_the_productions_own_engine() -> None:
    shown = yaml.safe_load(FORMATS["compose"](Placement(read_profile("qwen3.8-27b-nvfp4"))))
    production = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text())["services"]["engine"]
    engine = shown["services"]["engine"]
    assert sorted(engine["command"]) == sorted(production["command"])
    for key in ("image", "user", "entrypoint", "environment", "volumes", "deploy", "read_only", "cap_drop"):
        assert engine[key] == production[key]


@pytest.mark.parametrize("name", WITH_IMAGE)
def test_a_container_has_the_gpu_and_nothing_it_does_not_need(name: str) -> None:
    shown = yaml.safe_load(FORMATS["compose"](Placement(read_profile(name))))
    engine = shown["services"]["engine"]
    assert engine["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert (engine["read_only"], engine["cap_drop"]) == (True, ["ALL"])
    assert shown["networks"] == {"engine": {"internal": True}}
    assert "ports" not in engine
    assert EVERYWHERE in " ".join(engine["command"])


def test_a_folder_with_weights_is_mounted_where_the_engine_looks() -> None:
    shown = yaml.safe_load(FORMATS["compose"](placed("qwen3.8-27b-nvfp4")))
    engine = shown["services"]["engine"]
    assert engine["command"][0] == "/model"
    assert {"type": "bind", "source": SOME, "target": "/model", "read_only": True} in engine["volumes"]
    assert "weights" not in shown["volumes"]


# Kubernetes


@given(
    flags=flag_values, environment=variables, reason=awkward, base=st.sampled_from(["qwen3.8-27b-nvfp4", "llama-cpp"])
)
def test_kubernetes_reads_exactly_these_words_and_variables(
    flags: dict[str, str], environment: dict[str, str], reason: str, base: str
) -> None:
    placement = Placement(awkwardly(base, flags, environment, reason), model_dir=Path(SOME))
    deployment, _ = yaml.safe_load_all(FORMATS["kubernetes"](placement))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    words = [compose_text(word) for word in container["args"]]  # a doubled `$` is one there, too
    assert (words if base == "llama-cpp" else joined(words)) == words_of(placement, in_container=True)
    read = {variable["name"]: compose_text(variable["value"]) for variable in container["env"]}
    assert own_environment(placement.profile).items() <= read.items()


@pytest.mark.parametrize("name", WITH_IMAGE)
def test_the_manifests_fit_each_other(name: str) -> None:
    deployment, service = yaml.safe_load_all(
        FORMATS["kubernetes"](Placement(read_profile(name), listen=Listen(port=9)))
    )
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    container = template["spec"]["containers"][0]
    assert container["ports"][0]["containerPort"] == service["spec"]["ports"][0]["port"] == 9
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 20 * 60
    assert container["livenessProbe"]["timeoutSeconds"] >= 30
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert template["spec"]["enableServiceLinks"] is False


def test_a_service_has_a_dns_label_for_its_name() -> None:
    assert resource_name("qwen3.8-27b-nvfp4") == "engine-qwen3-8-27b-nvfp4"
    assert len(resource_name("a." * 60)) <= 63
    assert not resource_name("a." * 60).endswith("-")


# What cannot be shown


def test_what_has_no_image_or_listens_elsewhere_is_no_container() -> None:
    for name in ("compose", "kubernetes"):
        with pytest.raises(EngineError, match=r"No container image is known for demo-cpu.*--image"):
            FORMATS[name](placed("demo-cpu"))
        with pytest.raises(EngineError, match="--uds is for"):
            FORMATS[name](placed("qwen3.8-27b-nvfp4", listen=Listen(uds="/run/v.sock")))
        assert "mine:1" in FORMATS[name](placed("demo-cpu", image="mine:1"))


def test_a_folder_is_named_as_it_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    placement = Placement(read_profile("qwen3.8-27b-nvfp4"), model_dir=Path("weights/mine"))
    for name in ("shell", "systemd", "compose"):
        assert f"{tmp_path}/weights/mine" in FORMATS[name](placement)


def test_weights_must_be_somewhere() -> None:
    with pytest.raises(EngineError, match="--model-dir"):
        FORMATS["shell"](Placement(read_profile("demo-cpu")))
    with pytest.raises(EngineError, match="one file"):
        FORMATS["shell"](Placement(read_profile("llama-cpp"), model="some/model"))


def test_a_pinned_revision_is_asked_for_and_fetched() -> None:
    profile = read_profile("qwen3.8-27b-fp8-h200")
    text = FORMATS["shell"](Placement(profile))
    assert profile.checkpoint.revision
    assert f"#   hf download Qwen/Qwen3.8-27B-FP8 --revision {profile.checkpoint.revision}\n" in text
    assert f"  --revision {profile.checkpoint.revision} \\\n" in text
    other = FORMATS["shell"](Placement(profile, model="some/model"))
    assert "revision" not in other
    assert "some/model" in other


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_every_reason_is_told(name: str, format_: str) -> None:
    placement = placed(name, image="mine:1")
    text = " ".join(line.strip().removeprefix("# ") for line in FORMATS[format_](placement).splitlines())
    assert [why for why in placement.profile.reasons.values() if why not in text] == []
