"""Servers of our own to measure on, so that every byte of WAL and every millisecond of CPU is the measured work's."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import psycopg

from tests.servers import Postgres, Redis, running

ROOT = Path(__file__).parents[1]


@dataclass
class Place:
    """A Postgres with default settings, fsync on, and a Redis without persistence."""

    folder: Path
    postgres: Postgres
    redis: Redis

    def connect(self) -> "psycopg.Connection[tuple[Any, ...]]":
        """To the server, beside what is measured."""
        return psycopg.connect(self.postgres.url, autocommit=True)

    @contextmanager
    def database(self, schema: str = "") -> Iterator[str]:
        """The URL of a fresh database, with these tables, gone at the end; the broker is emptied too."""
        name = f"bench_{token_hex(4)}"
        url = self.postgres.url.replace("/postgres", f"/{name}")
        with self.redis.client() as redis:
            redis.flushall()
        with self.connect() as server:
            server.execute(f'CREATE DATABASE "{name}"')
            try:
                if schema:
                    with psycopg.connect(url) as connection:
                        connection.execute(schema)
                yield url
            finally:
                server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    @contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        """For the notes and logs of one measurement; kept, with its path in the error, when that fails."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield folder
        except Exception as error:
            kept = Path(tempfile.mkdtemp(prefix="agentq-bench-failed-"))
            shutil.copytree(folder, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("ends"))
            error.add_note(f"logs and notes are kept in {kept}")
            raise
        finally:
            shutil.rmtree(folder)


# The folder with the programs of the Postgres to measure on; without it, that of the ``embedded`` extra.
BINARIES = "BENCH_POSTGRES"


@contextmanager
def place() -> Iterator[Place]:
    """Everything is started, and gone at the end whatever became of it."""
    if shutil.which("redis-server") is None:
        raise SystemExit("bench: redis-server is not installed")
    folder = Path(tempfile.mkdtemp(prefix="agentq-bench-"))
    # The server's account, which for root is another one, must get to its data.
    folder.chmod(0o755)
    for name in ("postgres", "redis"):
        (folder / name).mkdir()
    try:
        binaries = Path(given) if (given := os.environ.get(BINARIES)) else None
        postgres = Postgres(folder / "postgres", options=["fsync=on"], binaries=binaries)
        with running(postgres), running(Redis(folder / "redis")) as redis:
            yield Place(folder, postgres, redis)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def worker_environment() -> dict[str, str]:
    """Ours without settings of agentq, and with the packages of this checkout in front."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGENTQ_", "BENCH_"))}
    packages = [str(ROOT), str(ROOT / "workers"), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(packages)}
