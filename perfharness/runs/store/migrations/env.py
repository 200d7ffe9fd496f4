"""What alembic runs to migrate a store: in the transaction that `database` has open, which holds the writers' lock."""

from __future__ import annotations

from alembic import context

from perfharness.runs.store.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
context.run_migrations()
