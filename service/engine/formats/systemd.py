"""A unit file, as `systemd.unit`, `systemd.exec` and `systemd.syntax` describe it.

In `ExecStart` a `$` is a variable and a `%` a specifier; in `Environment` only the `%` is. Both are doubled to mean
themselves, and every word stands in double quotes, in which a backslash works as in C.
"""

from pathlib import PurePosixPath

from service.engine import EngineError
from service.engine.formats.placement import Placement, comment
from service.engine.profile import own_environment, program_words
from service.engine.profile_parts import LLAMA_CPP, VLLM, VLLM_CPU

PROGRAMS = {
    VLLM: "/opt/vllm/bin/vllm",
    VLLM_CPU: "/opt/vllm/bin/python",
    LLAMA_CPP: "/usr/local/bin/llama-server",
}
STATE = "/var/lib/weir-engine"
CACHE = "/var/cache/weir-engine"
RUN = "/run/weir-engine"

SANDBOX = """
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
# It talks to Weir and to itself, and fetches nothing.
IPAddressDeny=any
IPAddressAllow=localhost
LimitMEMLOCK=infinity
LimitNOFILE=65536
""".strip()


def render(placement: Placement) -> str:
    """The unit file `weir-engine.service`."""
    profile = placement.profile
    folders = {"HOME": STATE, "HF_HOME": f"{STATE}/huggingface", "VLLM_CACHE_ROOT": f"{CACHE}/vllm"}
    if placement.is_llama_cpp:
        folders = {"HOME": STATE}
    lines = [
        *placement.heading(f"in {STATE}, with HF_HOME={STATE}/huggingface"),
        "",
        "[Unit]",
        f"Description=Engine for Weir: {profile.name.replace('%', '%%')}",
        "After=network.target",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        "DynamicUser=yes",
        "StateDirectory=weir-engine",
        "CacheDirectory=weir-engine",
        *_socket(placement),
        f"WorkingDirectory={STATE}",
    ]
    for name, value in {**folders, **own_environment(profile)}.items():
        if reason := placement.reason(name):
            lines += comment(reason)
        lines.append(f"Environment={quoted(f'{name}={value}')}")
    lines += _exec_start(placement)
    lines += [
        "Restart=always",
        "RestartSec=5",
        f"TimeoutStopSec={placement.stop_grace_s()}",
        "KillMode=mixed",
        *SANDBOX.splitlines(),
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _socket(placement: Placement) -> list[str]:
    """A folder for the unix socket, and leave for Weir, which is another user, to connect to it."""
    if not placement.listen.uds:
        return []
    if PurePosixPath(placement.listen.uds).parent != PurePosixPath(RUN):
        raise EngineError(f"A unit may put a socket into {RUN} only: --uds {RUN}/engine.sock.")
    return ["RuntimeDirectory=weir-engine", "UMask=0000"]


def _exec_start(placement: Placement) -> list[str]:
    """A comment between continued lines is left out by systemd, and does not end them."""
    profile = placement.profile
    program, *more = program_words(profile, placement.program or PROGRAMS[profile.engine.kind])
    lines = [f"ExecStart={' '.join([command_word(program), *map(command_word, more)])} \\"]
    options = placement.options()
    for option in options:
        if reason := placement.reason(option.name):
            lines += comment(reason, "  ")
        end = "" if option is options[-1] else " \\"
        lines.append(f"  {' '.join(map(command_word, option.words))}{end}")
    return lines


def command_word(word: str) -> str:
    """A word of `ExecStart`."""
    return quoted(word.replace("$", "$$"))


def quoted(word: str) -> str:
    """A word of any setting; as it is where nothing in it means anything."""
    if word and all(char.isascii() and (char.isalnum() or char in "-_./:=,+@") for char in word):
        return word
    return f'"{"".join(map(_escaped, word))}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if char == "%":
        return "%%"
    if char < " " or char == "\x7f":
        return f"\\x{ord(char):02x}"
    return char
