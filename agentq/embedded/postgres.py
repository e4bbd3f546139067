"""The embedded Postgres: makes the data folder, starts the server on a Unix socket, attaches to one that runs.

Everything here is called under the start lock of :mod:`agentq.embedded.ownership`, by one process at a time.
"""

import hashlib
import os
import re
import shutil
import socket
import stat
from pathlib import Path
from urllib.parse import quote

from agentq.embedded.account import ADVICE, Account, server_account
from agentq.embedded.ownership import PORT, is_coming_up, listening_pid, recorded_pid, socket_folder, wait_until
from agentq.embedded.places import keep_data_folder, make_data_folder, programs
from agentq.errors import ConfigError

USER = "agentq"
READY_SECONDS = 30.0
INITDB = ("--encoding=UTF8", "--no-locale", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--auth=trust")
# Relative names, for a program whose working directory is the data: pg_ctl pastes them into a shell line.
START = ("start", "--wait", "--silent", "--timeout=60", "--pgdata=.", "--log=server.log")


def ensure_running(root: Path, start_lock: int) -> str:
    """The URL of the server of ``root``, which is made and started if it does not run yet."""
    data = root / "pg"
    if not _is_ready(data):
        account = server_account()
        binaries = programs(account)
        _make_data(root, account, binaries, start_lock)
        _drop_stale_locks(data)
        _start(data.resolve(), account, binaries, start_lock)
    return f"postgresql://{USER}@/postgres?host={quote(socket_folder(data) or '')}&port={PORT}"


def _has_reported_ready(data: Path) -> bool:
    try:
        return (data / "postmaster.pid").read_text().split("\n")[7].strip() == "ready"
    except (FileNotFoundError, IndexError):
        return False


def _is_ready(data: Path) -> bool:
    """Whether a server runs, after waiting for one that is starting or stopping."""

    def is_settled() -> bool:
        if listening_pid(data) is None:
            return not is_coming_up(data)
        return _has_reported_ready(data)

    if not wait_until(is_settled, READY_SECONDS):
        raise ConfigError(f"the embedded Postgres in {data} neither gets ready nor ends: see {data / 'server.log'}")
    return listening_pid(data) is not None


def _drop_stale_locks(data: Path) -> None:
    # Postgres refuses to start while the pid in its lock files belongs to any process at all: after the restart of a
    # container it nearly always does, and a killed server whose parent does not reap it keeps its own.
    if recorded_pid(data) is not None:
        for folder in (data, Path(socket_folder(data) or data)):
            (folder / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
        (data / "postmaster.pid").unlink(missing_ok=True)


def _make_data(root: Path, account: Account, binaries: Path, start_lock: int) -> None:
    data = root / "pg"
    if data.exists():
        return
    if data.is_symlink():
        raise ConfigError(
            f"{data} points to {data.readlink()}, which is gone: remove {data} to begin with an empty one"
        )
    fresh = make_data_folder(root, account)
    try:
        account.run(
            [binaries / "initdb", *INITDB, "--username", USER, "--pgdata", fresh], cwd=fresh, start_lock=start_lock
        )
        keep_data_folder(fresh, root)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _start(data: Path, account: Account, binaries: Path, start_lock: int) -> None:
    options = f"--options=-c listen_addresses='' -c max_connections=200 -p {PORT} -k {_place_for_socket(data, account)}"

    def is_started() -> bool:
        try:
            account.run([binaries / "pg_ctl", *START, options], cwd=data, start_lock=start_lock)
        except ConfigError:
            # The processes of a server that was killed -9 need a moment to notice.
            if "pre-existing shared memory block" in _log_tail(data):
                return False
            raise
        return True

    try:
        has_started = wait_until(is_started, READY_SECONDS)
    except ConfigError as error:
        raise ConfigError(f"{data / 'server.log'} ends:\n{_log_tail(data)}\n{error.message}") from error
    if not has_started:
        raise ConfigError(f"processes of an earlier server still use {data}: end them, {ADVICE}")


def _log_tail(data: Path) -> str:
    try:
        return (data / "server.log").read_text(errors="replace")[-1000:]
    except FileNotFoundError:
        return ""


def _place_for_socket(data: Path, account: Account) -> Path:
    """The data folder, or a private one under /tmp if a socket's name there is too long or needs quoting."""
    if re.fullmatch(r"[A-Za-z0-9/._-]+", str(data)) and _can_bind(data):
        return data
    short = Path("/tmp") / f"agentq-{hashlib.sha256(os.fsencode(data)).hexdigest()[:12]}"
    try:
        short.mkdir(mode=0o700)
        account.own(short)
    except FileExistsError:
        # Anybody may have made it: whoever owns it could answer as our database.
        status = short.lstat()
        owner = os.geteuid() if account.uid is None else account.uid
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner or status.st_mode & 0o077:
            raise ConfigError(f"{short} belongs to somebody else: remove it, {ADVICE}") from None
    return short


def _can_bind(folder: Path) -> bool:
    name = folder / ".s.PGSQL.probe"
    name.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(str(name))
        except OSError:  # too long, or a file system without sockets
            return False
    name.unlink()
    return True
