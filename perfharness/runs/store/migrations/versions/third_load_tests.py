"""Schema 0003: what load tests say of themselves, and intervals of figures."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; what was stored before has none of it."""
    op.add_column("perfharness_run", sa.Column("verdict", sa.Text))
    op.add_column("perfharness_figure", sa.Column("low", sa.Float(53)))
    op.add_column("perfharness_figure", sa.Column("high", sa.Float(53)))
