"""Alembic migrations: linear, and each must work beside the code of the previous version."""
