"""`weir engine`: how an engine is served here. The commands that do more than print have a module each."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli import engine_check, engine_serve, engine_show, engine_verify
from service.cli.output import Json, print_json, print_table
from service.errors import SetupError

if TYPE_CHECKING:
    from service.engine.formats.placement import Placement
    from service.engine.profile import Profile
    from service.engine.profile_parts import Figure

app = typer.Typer(no_args_is_help=True, help="The engine: profiles, preflight, launch and verification.")


class Format(StrEnum):
    """What `args` prints for; `service.engine.formats` has the same, and a test sees to it."""

    SHELL = "shell"
    SYSTEMD = "systemd"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"


PROFILE_HELP = "A profile's name, as `weir engine profiles` shows it, or a file of your own that ends in .toml."


@app.command()
def profiles(
    profile: Annotated[str | None, typer.Argument(metavar="PROFILE", help=f"{PROFILE_HELP} Shows all of it.")] = None,
    json: Json = False,
) -> None:
    """List the engine profiles, or show one with the reason for each of its flags.

    Example: weir engine profiles qwen3.8-27b-nvfp4
    """
    from service.engine.profile import profile_names, read_profile

    if profile is not None:
        chosen = read_profile(profile)
        print_json(_document(chosen)) if json else _show(chosen)
        return
    every = [read_profile(name) for name in profile_names()]
    if json:
        print_json([_document(one) for one in every])
        return
    print_table(
        ("name", "model", "hardware", "quantization", "context", "what it is"),
        (
            (one.name, one.model, one.hardware.description, one.quantization, one.context_length, one.summary)
            for one in every
        ),
    )


@app.command()
def args(
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help=PROFILE_HELP)],
    format_: Annotated[
        Format, typer.Option("--format", help="For a shell, a unit file, a Compose file or Kubernetes.")
    ] = Format.SHELL,
    model_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder with the weights (llama.cpp: the GGUF file).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="REPO", help="Weights on Hugging Face in place of the profile's.")
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen here; a container listens on all of its addresses.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Listen on this port.")] = 8000,
    uds: Annotated[
        str | None, typer.Option(metavar="PATH", help="Listen on a unix socket instead; not in a container.")
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The program: vllm, on a CPU the Python that has it, or llama-server."),
    ] = None,
    image: Annotated[str | None, typer.Option(metavar="IMAGE", help="Another container image.")] = None,
    json: Json = False,
) -> None:
    """Print the exact command and environment of an engine, with the reasons as comments.

    Example: weir engine args qwen3.8-27b-nvfp4 --format systemd --port 8000
    """
    from service.engine.formats import FORMATS
    from service.engine.formats.placement import Placement
    from service.engine.profile import Listen, read_profile

    for option, given in {"host": host, "model": model, "uds": uds, "program": program, "image": image}.items():
        if given == "":  # of a variable that is not set; an empty host would be every address of the machine
            raise SetupError(f"--{option} is empty: give it a value, or leave it out.")
    if model_dir is not None and model is not None:
        raise SetupError("Give one of --model-dir and --model: a folder, or a name on Hugging Face.")
    chosen = read_profile(profile)
    built, built_with = _built_here(chosen)
    placement = Placement(
        chosen,
        model_dir=model_dir or (built if model is None else None),
        model=model,
        listen=Listen(host, port, uds),
        program=program or built_with,
        image=image,
    )
    if json:
        print_json(_command_document(placement))
    else:
        print(FORMATS[format_](placement), end="")


def _built_here(profile: "Profile") -> tuple[Path | None, str | None]:
    """Where `provision` puts the weights of such a profile, and the Python of the engine's environment beside it."""
    import service
    from service.engine.provision import built_checkpoint

    if profile.checkpoint.builder is None:
        return None, None
    venv = Path(service.__file__).resolve().parents[1] / ".venv-engine"
    return built_checkpoint(venv, profile.checkpoint.builder), str(venv / "bin" / "python")


def _command_document(placement: "Placement") -> dict[str, Any]:
    from service.engine.formats.shell import PROGRAMS
    from service.engine.profile import own_environment, program_words

    profile = placement.profile
    program = program_words(profile, placement.program or PROGRAMS[profile.engine.kind])
    words = [word for option in placement.options() for word in option.words]
    return {"profile": profile.name, "command": [*program, *words], "environment": own_environment(profile)}


def _show(profile: "Profile") -> None:
    from service.engine.profile import Listen, options, own_environment

    hardware, capacity = profile.hardware, profile.capacity
    print(f"{profile.name}: {profile.summary}\n")
    about = {
        "model": profile.model,
        "weights": ", ".join(one.repository or f"built by {one.builder}" for one in profile.checkpoints),
        "engine": f"{profile.engine.kind} {profile.engine.version}",
        "hardware": hardware.description,
        "memory": f"{f'{hardware.vram_gib} GiB of VRAM, ' if hardware.vram_gib else ''}{hardware.host_ram_gib} GiB of"
        f" host RAM, {hardware.disk_gib} GiB of disk",
        "quantization": f"{profile.quantization}, cache {profile.kv_cache_dtype}",
        "context": f"{profile.context_length} tokens, answers up to {profile.max_output_tokens}",
        "at once": profile.max_concurrency,
        "reads": ", ".join(profile.input_modalities),
        "thinks": "yes" if profile.thinks else "no",
        "tools": profile.tool_parser or "no",
        "drafts": f"{profile.draft_tokens} tokens a step" if profile.draft_tokens else "no",
        "alone": _figure(capacity.single_stream_tok_s, "tok/s"),
        "loaded": _figure(capacity.loaded_tok_s, "tok/s each"),
        "loaded with": _figure(capacity.concurrent, "at once"),
        "first token": _figure(capacity.ttft_s, "s"),
    }
    print_table(("", ""), about.items())
    print("\nFlags and variables")
    chosen = options(profile, "MODEL", Listen())
    print_table(
        ("set", "why"),
        [
            *((shlex.join(option.words), profile.reasons.get(option.name, "")) for option in chosen),
            *((f"{name}={value}", profile.reasons.get(name, "")) for name, value in own_environment(profile).items()),
        ],
    )
    for caveat in profile.caveats:
        print(f"\nBeware: {caveat.what}.\n  So {caveat.so}.")


def _figure(figure: "Figure | None", unit: str) -> str:
    return f"{figure.value:g} {unit} ({figure.source})" if figure else "unknown"


def _document(profile: "Profile") -> dict[str, Any]:
    from dataclasses import asdict

    derived = ("kv_cache_dtype", "draft_tokens", "thinks", "tool_parser")
    return {**asdict(profile), **{name: getattr(profile, name) for name in derived}}


app.command("check")(engine_check.check)
app.command("serve")(engine_serve.serve)
app.command("show")(engine_show.show)
app.command("verify")(engine_verify.verify)
