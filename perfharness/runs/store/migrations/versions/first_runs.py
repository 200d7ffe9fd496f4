"""Schema 0001: runs, their figures, their tags."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

RUN = "perfharness_run.run_id"


def upgrade() -> None:
    """Make the tables. Written out, for `tables` will change and this must not."""
    op.create_table(
        "perfharness_run",
        sa.Column("run_id", sa.String(200), primary_key=True),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("series_id", sa.String(200), sa.ForeignKey(RUN, ondelete="CASCADE")),
        sa.Column("position", sa.Integer),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("created", sa.String(40), nullable=False),
        sa.Column("created_unix_ns", sa.BigInteger, nullable=False),
        sa.Column("command", sa.JSON, nullable=False),
        sa.Column("script", sa.Text, nullable=False),
        sa.Column("script_path", sa.Text),
        sa.Column("script_arguments", sa.JSON, nullable=False),
        sa.Column("setup", sa.String(64), nullable=False),
        sa.Column("setup_facts", sa.JSON, nullable=False),
        sa.Column("environment", sa.JSON, nullable=False),
        sa.Column("git_commit", sa.String(64)),
        sa.Column("git_dirty", sa.Boolean),
        sa.Column("num_processes", sa.Integer),
        sa.Column("processes_ok", sa.Integer),
        sa.Column("exit_code", sa.Integer, nullable=False),
        sa.Column("errors", sa.Integer, nullable=False),
        sa.Column("warnings", sa.Integer, nullable=False),
        sa.Column("notes", sa.Integer, nullable=False),
    )
    op.create_index("perfharness_run_created", "perfharness_run", ["created_unix_ns"])
    op.create_index("perfharness_run_series", "perfharness_run", ["series_id"])
    op.create_table(
        "perfharness_figure",
        sa.Column("run_id", sa.String(200), sa.ForeignKey(RUN, ondelete="CASCADE"), primary_key=True),
        sa.Column("path", sa.Text, primary_key=True),
        sa.Column("metric", sa.String(100), primary_key=True),
        sa.Column("unit", sa.String(20), nullable=False),
        sa.Column("count", sa.BigInteger),
        sa.Column("mean", sa.Float(53)),
        sa.Column("p50", sa.Float(53)),
        sa.Column("p95", sa.Float(53)),
        sa.Column("reason", sa.Text),
    )
    op.create_index("perfharness_figure_of", "perfharness_figure", ["path", "metric"])
    op.create_table(
        "perfharness_tag",
        sa.Column("run_id", sa.String(200), sa.ForeignKey(RUN, ondelete="CASCADE"), primary_key=True),
        sa.Column("tag", sa.String(200), primary_key=True),
    )
