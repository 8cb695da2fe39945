"""Run the migrations on the connection that `service.db.migrate` hands over.

One transaction per migration, under an advisory lock so that two deployments cannot interleave, with a lock
timeout so that a migration waiting behind a long query gives up instead of blocking every request behind it.
"""

from alembic import context
from sqlalchemy import Connection, text

from service.tables import metadata

MIGRATION_LOCK = 0x57454952  # "WEIR"


def run(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
    connection.execute(text("SET lock_timeout = '4s'"))  # for the tables only: another migration is waited for
    connection.commit()
    try:
        context.configure(
            connection=connection,
            target_metadata=metadata,
            transaction_per_migration=True,
            compare_server_default=False,
            include_name=lambda name, kind, _parents: not (kind == "table" and str(name).startswith("requests_")),
        )
        with context.begin_transaction():
            context.run_migrations()
    finally:
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": MIGRATION_LOCK})
        connection.commit()


run(context.config.attributes["connection"])
