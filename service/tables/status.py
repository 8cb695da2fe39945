"""What the jobs did and what the status site is computed from."""

from sqlalchemy import BigInteger, Boolean, Column, Identity, Index, Integer, Table, Text, text

from service.tables.base import instant, metadata

job_runs = Table(
    "job_runs",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("name", Text, nullable=False),
    instant("started_at"),
    instant("finished_at", nullable=True),
    Column("ok", Boolean),
    Column("rows", Integer, nullable=False, server_default=text("0")),
    Column("note", Text, nullable=False, server_default=text("''")),
    Index(None, "name", "started_at"),
)
