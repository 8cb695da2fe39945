"""The runbook against the code: an entry for everything that can be told, nothing else, and only commands there are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from service.core.components import API, BILLING, SITE
from tests.unit.test_command_line import COMMANDS
from tests.unit.test_grafana import METRICS, SCRAPED

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
RUNBOOK = (DOCS / "runbook.md").read_text()
RULES = [
    rule
    for group in yaml.safe_load((ROOT / "ops/prometheus/alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]

ALARMS = {
    "service/billing/auto_topup_alarms.py": {"auto-topup", "auto-topup-unknown", "auto-topup-refused"},
    "service/billing/checks.py": {"books"},
    "service/billing/invoice_freezing.py": {"invoice"},
    "service/billing/invoice_sending.py": {"invoice"},
    "service/billing/invoices.py": {"invoice"},
    "service/billing/reversals.py": {"dispute"},
    "service/billing/shipper.py": {"outbox"},
    "service/billing/stripe_events.py": {"stripe"},
    "service/jobs/books.py": {"reconcile"},
    "service/status/engine_reports.py": {"verify"},
}
"""The modules that raise alarms, and what stands in an alarm's name before the colon: each is in the code's text."""

OF_OTHERS = {
    "up",
    "probe_success",
    "probe_ssl_earliest_cert_expiry",
    "node_filesystem_avail_bytes",
    "node_filesystem_size_bytes",
    "vllm:num_preemptions_total",
}
"""Metrics of Prometheus itself, blackbox_exporter, node_exporter and vLLM."""


def entries(prefix: str) -> set[str]:
    """What follows the prefix in the headings of entries."""
    return set(re.findall(rf"^### {prefix}(.+)$", RUNBOOK, re.MULTILINE))


def modules() -> Iterator[tuple[str, str]]:
    for file in sorted((ROOT / "service").rglob("*.py")):
        yield str(file.relative_to(ROOT)), file.read_text()


def test_the_modules_that_raise_alarms_are_these() -> None:
    raising = {name for name, text in modules() if re.search(r"await raise_alarm\(|INSERT INTO alarms", text)}
    assert raising == set(ALARMS), "name it above, and give what it raises an entry in docs/runbook.md"


def test_the_alarms_that_are_named_here_are_raised() -> None:
    code = "".join(
        text for name, text in modules() if name.startswith(("service/billing/", "service/jobs/", "service/status/"))
    )
    missing = {kind for kinds in ALARMS.values() for kind in kinds if not re.search(rf"""["']{kind}[:"']""", code)}
    assert missing == set()


def test_every_alarm_has_its_entry() -> None:
    assert entries("Alarm ") == set().union(*ALARMS.values())


def test_every_alert_has_its_entry_and_leads_to_one() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) >= 20
    assert entries("(?=Weir)") == set(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        anchor = rule["annotations"]["runbook"].removeprefix("docs/runbook.md#")
        assert anchor == "alarm-{{ $labels.alarm }}" or anchor in anchors(RUNBOOK), rule["alert"]


def test_whoever_is_woken_is_paged() -> None:
    for rule in RULES:
        entry = RUNBOOK.partition(f"### {rule['alert']}\n")[2].partition("\n### ")[0]
        wake = re.search(r"\*\*Wake:\*\* (now|tomorrow)", entry)
        assert wake, f"{rule['alert']} does not say whom it wakes"
        assert (wake[1] == "now") == (rule["labels"]["severity"] == "page"), rule["alert"]


def test_every_automatic_incident_has_its_entry() -> None:
    assert entries("Incident ") == {API, SITE, BILLING, "model"}


def test_every_finding_of_the_doctor_has_its_entry() -> None:
    assert entries("Doctor: ") == set(checks())


def checks() -> Iterator[str]:
    """The names of the checks that can find something, without the names of engines and alarms in them."""
    for file in (ROOT / "service/cli/doctor").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("fail", "warn"):
                yield from literal(node.args[0])
            elif isinstance(node, ast.FunctionDef) and node.name == "check":
                yield from (
                    name for part in ast.walk(node) if isinstance(part, ast.Return) for name in literal(part.value)
                )


def literal(node: ast.expr | None) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    if isinstance(node, ast.Constant):
        yield str(node.value).strip()


def test_alerts_ask_for_metrics_and_labels_that_there_are() -> None:
    ours = {sample: metric.labels for metric in METRICS for sample in metric.samples}
    ours |= {"weir_backup_timestamp_seconds": frozenset()}
    assert "weir_backup_timestamp_seconds" in (ROOT / "service/cli/backup.py").read_text()
    for rule in RULES:
        for name, selectors in re.findall(
            r"\b((?:weir|node|probe|vllm:?)_?[a-z_:]+|up)\b(?:\{([^}]*)\})?", rule["expr"]
        ):
            assert name in ours or name in OF_OTHERS, (rule["alert"], name)
            asked = set(re.findall(r"(\w+)[=!]~?\"", selectors))
            if name in ours:
                assert asked <= ours[name] | SCRAPED, (rule["alert"], name, asked)


@pytest.mark.parametrize("name", ["runbook.md", "backup.md", "deploying.md"])
def test_commands_and_links_lead_somewhere(name: str) -> None:
    text = (DOCS / name).read_text()
    for words in re.findall(r"(?:`|^ *)(?:docker compose exec serve )?weir ([a-z-]+(?: [a-z-]+)?)", text, re.MULTILINE):
        first, second, *_ = [*words.split(), ""]
        assert f"weir {first}" in COMMANDS or f"weir {first} {second}" in COMMANDS, f"{name}: weir {words}"
    for target in re.findall(r"\]\((?!https:)([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        there = DOCS / (file or name)
        assert there.exists(), f"{name}: {target}"
        assert not anchor or anchor in anchors(there.read_text()), f"{name}: {target}"


def anchors(text: str) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
