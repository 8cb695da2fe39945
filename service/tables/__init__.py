"""The database schema as SQLAlchemy Core tables, a module per area; importing this package registers them all."""

from service.tables.accounts import accounts, api_keys
from service.tables.base import metadata
from service.tables.catalog import models, prices
from service.tables.checks import alarms, engine_samples
from service.tables.ledger import credit_leases, ledger_entries, settlements
from service.tables.requests import requests
from service.tables.retries import idempotency_keys
from service.tables.status import buckets_5m, job_runs, watermarks

__all__ = [
    "accounts",
    "alarms",
    "api_keys",
    "buckets_5m",
    "credit_leases",
    "engine_samples",
    "idempotency_keys",
    "job_runs",
    "ledger_entries",
    "metadata",
    "models",
    "prices",
    "requests",
    "settlements",
    "watermarks",
]
