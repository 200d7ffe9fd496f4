"""A real PostgreSQL for tests, in a temporary folder, on a socket in it, as a user without privileges."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launches import CHECKOUT, PATIENCE_S

NOBODY = "nobody"


def programs() -> Path:
    """The folder of initdb; skips the test where there is none."""
    if (named := os.environ.get("PERFHARNESS_TEST_POSTGRES")) is not None:
        return Path(named)
    script = CHECKOUT / "scripts" / "install_postgres"
    done = subprocess.run([script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        pytest.skip(f"no PostgreSQL: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return Path(done.stdout.strip().splitlines()[-1])


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """A server with an empty database; its URL."""
    found = programs()
    with tempfile.TemporaryDirectory(prefix="perfharness-pg-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        as_nobody = os.geteuid() == 0  # as which PostgreSQL refuses to run
        user = pwd.getpwnam(NOBODY) if as_nobody else pwd.getpwuid(os.geteuid())
        if as_nobody:
            if found.is_relative_to(CHECKOUT):  # which another user may not be able to read
                shutil.copytree(CHECKOUT / ".postgres", folder / "programs")
                found = folder / "programs" / found.relative_to(CHECKOUT / ".postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
        libraries = found.parents[4] / "lib_of_postgres"
        environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "LD_LIBRARY_PATH": str(libraries), "LC_ALL": "C"}

        def run(*command: object) -> None:
            log = folder / "commands.log"
            with log.open("ab") as output:
                done = subprocess.run(
                    [str(word) for word in command], cwd=folder, env=environ, stdout=output, stderr=output,
                    timeout=PATIENCE_S, check=False,
                    user=user.pw_uid if as_nobody else None, group=user.pw_gid if as_nobody else None,
                    extra_groups=[] if as_nobody else None,
                )  # fmt: skip
            assert done.returncode == 0, log.read_text()

        data = folder / "data"
        run(found / "initdb", "-D", data, "-U", "perf", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        run(found / "pg_ctl", "-D", data, "-w", "-l", folder / "server.log", "-o", options, "start")
        try:
            yield f"postgresql://perf@/postgres?host={folder}"
        finally:
            run(found / "pg_ctl", "-D", data, "-m", "immediate", "stop")
