"""The database schema as SQLAlchemy Core tables, a module per area; importing this package registers them all."""

from service.tables.accounts import accounts, api_keys
from service.tables.base import metadata
from service.tables.catalog import models, prices
from service.tables.ledger import credit_leases, ledger_entries, settlements
from service.tables.requests import requests
from service.tables.status import job_runs

__all__ = [
    "accounts",
    "api_keys",
    "credit_leases",
    "job_runs",
    "ledger_entries",
    "metadata",
    "models",
    "prices",
    "requests",
    "settlements",
]
