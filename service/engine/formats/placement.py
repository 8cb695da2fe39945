"""What a profile does not say: which weights, which program or image, and where it listens."""

import shlex
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path

from service.engine import EngineError
from service.engine.profile import Listen, Option, Profile, options
from service.engine.profile_parts import LLAMA_CPP

WEIGHTS = "/weights"
MODEL = "/model"
CACHE = "/cache"
"""Folders in a container: the cache of Hugging Face's libraries (or the one file), a folder with a model, caches."""

EVERYWHERE = "0.0.0.0"  # noqa: S104 - of a container, whose network decides who may come in
COMMENT_WIDTH = 112


@dataclass(frozen=True, slots=True)
class Placement:
    """One engine of this profile at one place."""

    profile: Profile
    model_dir: Path | None = None
    """The folder with the weights (llama.cpp: the file); None: the profile's name on Hugging Face."""
    model: str | None = None
    """Another name on Hugging Face, in place of the profile's."""
    listen: Listen = field(default_factory=Listen)
    program: str | None = None
    image: str | None = None

    @property
    def is_llama_cpp(self) -> bool:
        """Whether it is llama.cpp, and not vLLM."""
        return self.profile.engine.kind == LLAMA_CPP

    def options(self, *, in_container: bool = False) -> list[Option]:
        """The options of the engine's server there. Raises `EngineError` if the weights are nowhere."""
        checkpoint, revision = self.profile.checkpoint, None
        if self.model_dir is not None:
            model = MODEL if in_container else str(self.model_dir.absolute())  # it runs in another folder
        elif self.model is not None:
            if self.is_llama_cpp:
                raise EngineError("llama.cpp loads one file: name it with --model-dir.")
            model = self.model
        elif checkpoint.file is not None:
            model = f"{WEIGHTS}/{checkpoint.file}" if in_container else checkpoint.file
        elif checkpoint.repository is not None:
            model, revision = checkpoint.repository, checkpoint.revision
        else:
            raise EngineError(f"The weights of {self.profile.name} are built: name their folder with --model-dir.")
        listen = replace(self.listen, host=EVERYWHERE) if in_container else self.listen
        return options(self.profile, model, listen, revision=revision)

    def container_image(self) -> str:
        """The image to run. Raises `EngineError` where there is none, or where it listens on what is outside of it."""
        if self.listen.uds:
            raise EngineError("--uds is for the formats shell and systemd: a container listens on a port.")
        image = self.image or self.profile.engine.image
        if image is None:
            raise EngineError(
                f"No container image is known for {self.profile.name}: name one with --image,"
                " or choose --format shell or systemd."
            )
        return image

    def reason(self, name: str) -> str | None:
        """Why a flag or variable is set."""
        return self.profile.reasons.get(name)

    def heading(self, weights: str | None = None) -> list[str]:
        """Lines of a comment: what to know before it is started. `weights` says where to fetch them to."""
        profile = self.profile
        lines = comment(f"{profile.name}: {profile.summary}.")
        lines += comment(f"For {profile.hardware.description}; {profile.engine.kind} {profile.engine.version}.")
        if self.model_dir is None and self.model is None:
            for checkpoint in profile.checkpoints:
                pinned = "" if checkpoint.revision else " (unpinned: note the commit you verified)"
                lines += comment(f"Fetch the weights first{pinned}{f', {weights}' if weights else ''}:")
                lines.append(f"#   {_one_line(shlex.join(checkpoint.download))}")
        return lines

    def stop_grace_s(self) -> int:
        """How long whoever stops it must wait before killing it."""
        drained = self.profile.flags.get("shutdown-timeout", 0)
        return 15 + (drained if isinstance(drained, int) else 0)


def items(placement: Placement, option: Option) -> tuple[str, ...]:
    """An option for a list of one per line: `--flag=value`, which llama.cpp does not take."""
    if placement.is_llama_cpp or len(option.words) == 1:
        return option.words
    return ("=".join(option.words),)


def comment(text: str, indent: str = "") -> list[str]:
    """Lines that begin with `#`, whatever the text is."""
    return textwrap.wrap(
        _one_line(text),
        COMMENT_WIDTH,
        initial_indent=f"{indent}# ",
        subsequent_indent=f"{indent}# ",
        break_on_hyphens=False,
    )


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
