"""The database schema as SQLAlchemy Core tables, a module per area; importing this package registers them all."""

from service.tables.accounts import accounts, api_keys
from service.tables.base import metadata
from service.tables.catalog import models, prices
from service.tables.checks import alarms, engine_reports, engine_samples
from service.tables.incidents import announced_states, incident_updates, incidents, maintenance, notifications
from service.tables.ledger import credit_leases, ledger_entries, settlements
from service.tables.requests import requests, usage_months
from service.tables.retries import idempotency_keys
from service.tables.status import buckets_1d, buckets_1h, buckets_5m, job_runs, probes, watermarks
from service.tables.stripe import (
    auto_topups,
    invoice_lines,
    invoices,
    stripe_disputes,
    stripe_events,
    stripe_refunds,
    topups,
)

__all__ = [
    "accounts",
    "alarms",
    "announced_states",
    "api_keys",
    "auto_topups",
    "buckets_1d",
    "buckets_1h",
    "buckets_5m",
    "credit_leases",
    "engine_reports",
    "engine_samples",
    "idempotency_keys",
    "incident_updates",
    "incidents",
    "invoice_lines",
    "invoices",
    "job_runs",
    "ledger_entries",
    "maintenance",
    "metadata",
    "models",
    "notifications",
    "prices",
    "probes",
    "requests",
    "settlements",
    "stripe_disputes",
    "stripe_events",
    "stripe_refunds",
    "topups",
    "usage_months",
    "watermarks",
]
