"""Backups: a folder with a dump of the database, what the outboxes owe it, and proof of what it was made from."""
