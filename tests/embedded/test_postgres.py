import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from agentq import embedded
from agentq.embedded import ownership, places
from agentq.errors import ConfigError

Python = Callable[..., "subprocess.Popen[str]"]
WaitFor = Callable[..., None]

OWNER = """
import sys
from agentq import embedded
with embedded.start(sys.argv[1]) as database:
    print(database.database_url, flush=True)
    sys.stdin.read()
"""
FORKING_OWNER = """
import os, sys, time
from agentq import embedded
database = embedded.start(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(100)
"""


def test_it_answers_psycopg_and_sqlalchemy_by_the_same_url_with_fsync_on(root: Path) -> None:
    with embedded.start(root) as database:
        with psycopg.connect(database.database_url) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
        engine = sqlalchemy.create_engine(database.database_url.replace("postgresql:", "postgresql+psycopg:", 1))
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT current_user")).scalar_one() == "agentq"
        engine.dispose()


def test_a_second_start_attaches_and_the_server_ends_with_its_last_owner(root: Path, python: Python) -> None:
    with embedded.start(root) as first:
        server = ownership.listening_pid(root / "pg")
        other = python("-c", OWNER, str(root), stdin=subprocess.PIPE)
        assert other.stdout is not None
        assert other.stdout.readline().strip() == first.database_url
        with embedded.start(root) as second:
            assert second.database_url == first.database_url
        assert ownership.listening_pid(root / "pg") == server
        first.close()
        assert ownership.listening_pid(root / "pg") == server
        other.communicate("")
        assert ownership.listening_pid(root / "pg") is None


def test_data_outlives_a_stop(root: Path) -> None:
    with embedded.start(root) as database, psycopg.connect(database.database_url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    with embedded.start(root) as database, psycopg.connect(database.database_url) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)


def test_a_closed_claim_may_be_closed_again(root: Path) -> None:
    with embedded.start(root) as kept:
        closed = embedded.start(root)
        closed.close()
        closed.close()
        psycopg.connect(kept.database_url).close()


@pytest.mark.crash
def test_an_owner_killed_with_9_leaves_no_server_behind(root: Path, python: Python, wait_for: WaitFor) -> None:
    owner = python("-c", OWNER, str(root), stdin=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline()
    assert ownership.listening_pid(root / "pg")
    owner.kill()
    wait_for(lambda: ownership.recorded_pid(root / "pg") is None, 10)


@pytest.mark.crash
@pytest.mark.parametrize("seconds", [0.15, 0.25, 0.4, 0.6, 0.75, 0.85, 0.95])
def test_an_owner_killed_while_starting_leaves_nothing_behind_and_nothing_broken(
    root: Path, python: Python, wait_for: WaitFor, seconds: float
) -> None:
    owner = python("-c", OWNER, str(root), stdin=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        owner.wait(seconds)
    owner.kill()
    owner.wait()
    if (root / "start.lock").exists():
        wait_for(lambda: ownership.is_free(root / "start.lock", ownership.fcntl.LOCK_EX))
    wait_for(lambda: ownership.recorded_pid(root / "pg") is None)
    with embedded.start(root) as database:
        psycopg.connect(database.database_url).close()


@pytest.mark.crash
def test_a_forked_child_keeps_the_server_until_it_dies_too(root: Path, python: Python, wait_for: WaitFor) -> None:
    owner = python("-c", FORKING_OWNER, str(root))
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        owner.kill()
        owner.wait()
        with embedded.start(root) as database:
            server = ownership.listening_pid(root / "pg")
        psycopg.connect(database.database_url).close()
        assert ownership.listening_pid(root / "pg") == server
    finally:
        os.kill(child, signal.SIGKILL)
    wait_for(lambda: ownership.recorded_pid(root / "pg") is None, 10)


def test_four_processes_that_start_at_once_share_one_server(root: Path, python: Python, watchers_of) -> None:
    owners = [python("-c", OWNER, str(root), stdin=subprocess.PIPE) for _ in range(4)]
    urls = {owner.stdout.readline() for owner in owners if owner.stdout is not None}
    assert len(urls) == 1
    assert ownership.listening_pid(root / "pg")
    assert len(watchers_of(root)) == 1
    for owner in owners:
        owner.communicate("")
    assert ownership.listening_pid(root / "pg") is None


@pytest.mark.crash
def test_a_server_killed_with_9_is_started_again_by_the_next_start(root: Path, wait_for: WaitFor) -> None:
    with embedded.start(root) as first:
        with psycopg.connect(first.database_url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
        killed = ownership.listening_pid(root / "pg")
        assert killed
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: ownership.listening_pid(root / "pg") is None)
        with embedded.start(root) as second, psycopg.connect(second.database_url) as connection:
            assert second.database_url == first.database_url
            assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
            assert ownership.listening_pid(root / "pg") != killed


@pytest.mark.crash
def test_a_killed_watcher_is_replaced_by_the_next_start(
    root: Path, python: Python, wait_for: WaitFor, watchers_of
) -> None:
    owner = python("-c", OWNER, str(root), stdin=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline()
    (watcher,) = watchers_of(root)
    watcher.kill()
    wait_for(lambda: not watchers_of(root))
    embedded.start(root).close()
    assert len(watchers_of(root)) == 1
    owner.kill()
    wait_for(lambda: ownership.recorded_pid(root / "pg") is None, 10)


def test_stale_lock_files_whose_process_id_belongs_to_another_process_are_no_obstacle(root: Path) -> None:
    locks = (root / "pg" / ".s.PGSQL.5432.lock", root / "pg" / "postmaster.pid")
    with embedded.start(root):
        texts = [lock.read_text() for lock in locks]
    for lock, text in zip(locks, texts, strict=True):
        lock.write_text(f"{os.getpid()}\n" + text.split("\n", 1)[1])
    with embedded.start(root) as database:
        psycopg.connect(database.database_url).close()


def test_what_an_interrupted_initdb_left_is_removed(root: Path) -> None:
    leftover = root / "pg-interrupted"
    leftover.mkdir(parents=True)
    (leftover / "PG_VERSION").write_text("18\n")
    with embedded.start(root) as database:
        psycopg.connect(database.database_url).close()
    assert not leftover.exists()


@pytest.mark.parametrize("name", ["with spaces", """a$b"c'd`e;f,g%20hü""", "deep" * 40])
def test_any_path_will_do(tmp_path: Path, root: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    elsewhere = tmp_path / name / ".agentq"
    root.symlink_to(elsewhere)  # so that the fixture cleans up
    elsewhere.mkdir()
    with embedded.start(elsewhere) as database:
        assert "%" not in database.database_url
        psycopg.connect(database.database_url).close()


def test_a_copy_of_the_folder_is_not_taken_for_the_running_server(root: Path, tmp_path: Path) -> None:
    with embedded.start(root):
        (tmp_path / "copy").mkdir()
        shutil.copy(root / "pg" / "postmaster.pid", tmp_path / "copy")
        assert ownership.listening_pid(tmp_path / "copy") is None


def test_without_the_wheel_the_error_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"agentq-celery\[embedded\].*AGENTQ_DATABASE_URL"):
        embedded.start(root)


def test_a_folder_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="AGENTQ_DATABASE_URL"):
        embedded.start(tmp_path / "file" / ".agentq")


def test_importing_it_does_not_import_kombu_or_celery(python: Python) -> None:
    found = python("-c", "import sys, agentq.embedded; print({'kombu', 'celery'} & set(sys.modules))")
    assert found.communicate()[0].strip() == "set()"
