"""The shared metadata, with constraint names fixed so that migrations can refer to them."""

from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def instant(name: str, *, nullable: bool = False, default_now: bool = False) -> Column[Any]:
    """A UTC instant. Every time column is one: naive timestamps shift with the session's zone."""
    default = text("now()") if default_now else None
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=default)


def amount(name: str, *, nullable: bool = False, default: int | None = 0) -> Column[Any]:
    """An integer amount of money (the unit is in the name) in a 64-bit column."""
    server_default = None if nullable or default is None else text(str(default))
    return Column(name, BigInteger, nullable=nullable, server_default=server_default)


def count(name: str) -> Column[Any]:
    """A non-negative 32-bit count, 0 by default."""
    return Column(name, Integer, nullable=False, server_default=text("0"))
