"""The tables of the run store as of the newest schema; `migrations` makes them. Names begin with `perfharness_`, for a
PostgreSQL database may hold other tables too.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

VERSION_TABLE = "perfharness_schema"
metadata = MetaData()

runs = Table(
    "perfharness_run",
    metadata,
    Column("run_id", String(200), primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("series_id", ForeignKey("perfharness_run.run_id", ondelete="CASCADE")),
    Column("position", Integer),
    Column("folder", Text, nullable=False),
    Column("created", String(40), nullable=False),
    Column("created_unix_ns", BigInteger, nullable=False),
    Column("command", JSON, nullable=False),
    Column("script", Text, nullable=False),
    Column("script_path", Text),
    Column("script_arguments", JSON, nullable=False),
    Column("setup", String(64), nullable=False),
    Column("setup_facts", JSON, nullable=False),
    Column("environment", JSON, nullable=False),
    Column("git_commit", String(64)),
    Column("git_dirty", Boolean),
    Column("num_processes", Integer),
    Column("processes_ok", Integer),
    Column("exit_code", Integer, nullable=False),
    Column("verdict", Text),
    Column("errors", Integer, nullable=False),
    Column("warnings", Integer, nullable=False),
    Column("notes", Integer, nullable=False),
    Index("perfharness_run_created", "created_unix_ns"),
    Index("perfharness_run_series", "series_id"),
)

figures = Table(
    "perfharness_figure",
    metadata,
    Column("run_id", ForeignKey("perfharness_run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("path", Text, primary_key=True),
    Column("metric", String(100), primary_key=True),
    Column("unit", String(20), nullable=False),
    Column("count", BigInteger),
    Column("mean", Float(53)),
    Column("p50", Float(53)),
    Column("p95", Float(53)),
    Column("low", Float(53)),
    Column("high", Float(53)),
    Column("reason", Text),
    Index("perfharness_figure_of", "path", "metric"),
)

tags = Table(
    "perfharness_tag",
    metadata,
    Column("run_id", ForeignKey("perfharness_run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("tag", String(200), primary_key=True),
)

documents = Table(
    "perfharness_document",
    metadata,
    Column("run_id", ForeignKey("perfharness_run.run_id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(300), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)
"""Files of a launch, compressed by zlib, as far as a comparison reads them."""

baselines = Table(
    "perfharness_baseline",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("saved_unix_ns", BigInteger, nullable=False),
)

baseline_runs = Table(
    "perfharness_baseline_run",
    metadata,
    Column("name", ForeignKey("perfharness_baseline.name", ondelete="CASCADE"), primary_key=True),
    Column("run_id", ForeignKey("perfharness_run.run_id"), primary_key=True),
    Column("position", Integer, nullable=False),
)
