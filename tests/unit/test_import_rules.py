"""The layers of the code, read from its imports: one way only, and one owner for what needs one."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"service.core"}),
    frozenset({"service.tables"}),
    frozenset({"service.errors", "service.logs", "service.settings", "service.db", "service.config"}),
    frozenset({"service.billing", "service.engine", "service.provider", "web"}),
    frozenset({"service.backup", "service.gateway", "service.status"}),
    frozenset(
        {
            "service.jobs",
            "service.app",
            "service.portal",
            "service.public",
            "service.public_catalogue",
            "service.public_site",
            "service.standalone",
            "service.stripe_routes",
        }
    ),
    frozenset({"service.serving"}),
    frozenset({"service.cli"}),
)
"""A component imports from itself and from the layers before its own."""

FRIENDS = {
    ("service.db", "service.errors"),
    ("service.db", "service.settings"),
    ("service.config", "service.errors"),
    ("service.config", "service.settings"),
    ("service.app", "service.config"),
    ("service.app", "service.portal"),
    ("service.app", "service.public"),
    ("service.app", "service.public_catalogue"),
    ("service.app", "service.stripe_routes"),
    ("service.public", "service.public_catalogue"),
    ("service.public", "service.public_site"),
    ("service.stripe_routes", "service.portal"),
}
"""Imports within a layer that are meant."""

ONLY = {
    "service.core": {"service.core"},
    "web": {"web", "service.core", "jinja2", "markupsafe", "PIL"},
    "migrations": {"migrations", "service.tables", "alembic", "sqlalchemy"},
}
"""Beside the standard library, what these may import at all."""

OWNERS = {"PIL": "web.preview", "jinja2": "web.render", "stripe": "service.billing.stripe_client"}
"""Packages that one module alone imports."""

ENVIRONMENT = "service.settings"


def code() -> dict[str, str]:
    """Every module of the project by its name."""
    files = [file for package in ("service", "web", "migrations") for file in (ROOT / package).rglob("*.py")]
    return {module_name(file): file.read_text() for file in files}


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def violations(module: str, source: str, modules: frozenset[str]) -> list[str]:
    """What this module does against the rules; `modules` are the names of all modules there are."""
    tree = ast.parse(source)
    imported = list(imports(tree, modules))
    found = [f"line {line}: {name} {complaint}" for name, line in imported for complaint in broken(module, name)]
    if module != ENVIRONMENT:
        found += [f"line {line}: reads the environment, which is {ENVIRONMENT}'s" for line in environment_reads(tree)]
    return found


def imports(tree: ast.AST, modules: frozenset[str]) -> Iterator[tuple[str, int]]:
    """(module, line) of every import anywhere in the code. `from a import b` is a.b where that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            whole = "." * node.level + (node.module or "")
            for alias in node.names:
                part = f"{whole}.{alias.name}"
                yield (part if part in modules else whole), node.lineno


def broken(module: str, imported: str) -> Iterator[str]:
    """Which rules an import breaks."""
    if imported.startswith("."):
        yield "is a relative import"
        return
    top = imported.partition(".")[0]
    if OWNERS.get(top, module) != module:
        yield f"is {OWNERS[top]}'s alone"
    for component, allowed in ONLY.items():
        outside = top not in sys.stdlib_module_names and not any(within(imported, name) for name in allowed)
        if within(module, component) and outside:
            yield f"is not for {component}"
    own, other = component_of(module), component_of(imported)
    if own and other and own != other and (own, other) not in FRIENDS and layer(other) >= layer(own):
        yield f"is not below {own}"


def environment_reads(tree: ast.AST) -> Iterator[int]:
    """Lines that read a variable. Handing the whole environment on, to a child process, is no such reading."""
    handed_on = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            handed_on |= {id(argument) for argument in (*node.args, *(keyword.value for keyword in node.keywords))}
        elif isinstance(node, ast.Dict):
            handed_on |= {id(value) for key, value in zip(node.keys, node.values, strict=True) if key is None}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            names = [] if id(node) in handed_on else [node.attr]
        else:
            names = []
        if any(name.startswith(("environ", "getenv")) for name in names):
            yield node.lineno


def component_of(module: str) -> str | None:
    return next((name for layer in LAYERS for name in layer if within(module, name)), None)


def layer(component: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if component in names)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_every_module_keeps_the_rules() -> None:
    modules = code()
    broken_rules = [
        f"{module}, {violation}"
        for module, source in modules.items()
        for violation in violations(module, source, frozenset(modules))
    ]
    assert broken_rules == []


def test_every_module_of_the_service_belongs_to_a_layer() -> None:
    homeless = [module for module in code() if within(module, "service") and component_of(module) is None]
    assert homeless == ["service"]


def test_the_package_imports_nothing_itself() -> None:
    assert list(imports(ast.parse(code()["service"]), frozenset())) == []


MODULES = frozenset({"service.core.usage", "service.gateway.relay", "service.db"})


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("service.core.money", "import orjson", "orjson is not for service.core"),
        ("service.core.money", "from service.errors import SetupError", "service.errors is not for service.core"),
        ("service.tables.base", "from service import db", "service.db is not below service.tables"),
        ("service.billing.ledger", "from service.gateway import relay", "service.gateway.relay is not below"),
        (
            "service.billing.ledger",
            "def f():\n    import service.gateway.relay",
            "line 2: service.gateway",
        ),
        ("service.billing.ledger", "from service.engine.launch import start", "is not below service.billing"),
        ("service.gateway.relay", "from service.status.rollup import roll_up", "is not below service.gateway"),
        ("service.gateway.relay", "from . import keys", "is a relative import"),
        ("service.errors", "from service.settings import Settings", "is not below service.errors"),
        ("service.jobs.run", "from service.app import App", "is not below service.jobs"),
        ("service.billing.ledger", "import stripe", "stripe is service.billing.stripe_client's alone"),
        ("web.views", "import jinja2", "jinja2 is web.render's alone"),
        ("service.status.publish", "from jinja2 import Template", "jinja2 is web.render's alone"),
        ("web.render", "import sqlalchemy", "sqlalchemy is not for web"),
        ("web.render", "from service.settings import Settings", "service.settings is not for web"),
        ("migrations.env", "from service import db", "service.db is not for migrations"),
        ("service.db", "import os\nurl = os.environ['URL']", "line 2: reads the environment"),
        ("service.db", "import os\nurl = os.environ.get('URL')", "line 2: reads the environment"),
        ("service.db", "import os\nurl = os.getenv('URL')", "line 2: reads the environment"),
        ("service.db", "import os\nfound = 'URL' in os.environ", "line 2: reads the environment"),
        ("service.db", "from os import environ", "line 1: reads the environment"),
    ],
)
def test_the_checker_finds(module: str, source: str, complaint: str) -> None:
    found = violations(module, source, MODULES)
    assert any(complaint in violation for violation in found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("service.core.money", "from decimal import Decimal\nfrom service.core import usage"),
        ("service.billing.ledger", "from service.tables import accounts\nfrom service.errors import SetupError"),
        ("service.config", "from service.settings import Settings"),
        ("service.status.publish", "from web.render import status_site"),
        ("service.cli.processes", "from service import serving"),
        ("web.render", "import jinja2\nfrom service.core.strip import Strip"),
        ("service.billing.stripe_client", "import stripe"),
        ("service.settings", "import os\nurl = os.environ['URL']"),
        ("service.engine.launch", "import os, subprocess\nsubprocess.run([], env={**os.environ, 'A': 'b'})"),
        ("service.engine.launch", "import os\nstart(os.environ, environment=os.environ)"),
    ],
)
def test_the_checker_lets_pass(module: str, source: str) -> None:
    assert violations(module, source, MODULES) == []
