"""Schema 0002: the files of a launch that a comparison reads, and baselines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

RUN = "perfharness_run.run_id"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "perfharness_document",
        sa.Column("run_id", sa.String(200), sa.ForeignKey(RUN, ondelete="CASCADE"), primary_key=True),
        sa.Column("name", sa.String(300), primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "perfharness_baseline",
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("saved_unix_ns", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "perfharness_baseline_run",
        sa.Column(
            "name", sa.String(200), sa.ForeignKey("perfharness_baseline.name", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("run_id", sa.String(200), sa.ForeignKey(RUN), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
    )
