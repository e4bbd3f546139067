"""Who owns the embedded server of a folder, and the watcher: a small process that stops it when nobody does any more.

An owner holds a shared lock on ``owners.lock``, which the kernel drops at any death, ``kill -9`` included. Starting and
stopping happen under ``start.lock``. The watcher waits for the exclusive lock on ``owners.lock`` and then stops the
server. It runs this file by its path, isolated and without site-packages, so that it starts in milliseconds and stays
small: the standard library only, and nothing of agentq.
"""

import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PORT = 5432  # of a Unix socket it is only a part of the name
STOP_SECONDS = 20.0
START_SECONDS = 5.0


def wait_until(is_true: Callable[[], bool], seconds: float) -> bool:
    """Poll until the claim holds; False when it did not in time."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def lock(path: Path, operation: int) -> int | None:
    """The open, locked file; None when ``LOCK_NB`` was asked for and another holder is in the way."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, operation)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file


def is_free(path: Path, operation: int) -> bool:
    file = lock(path, operation | fcntl.LOCK_NB)
    if file is None:
        return False
    _unlock(file)
    return True


def _unlock(file: int) -> None:
    # A process forked by another thread meanwhile has a copy: only closing ours would leave it locked for ever.
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


@contextmanager
def serialised(root: Path) -> Iterator[int]:
    """Alone among all processes that start or stop the server of ``root``; yields the lock's file descriptor."""
    file = lock(root / "start.lock", fcntl.LOCK_EX)
    assert file is not None
    try:
        yield file
    finally:
        _unlock(file)


def own(root: Path) -> int:
    """Become an owner until the returned descriptor is closed everywhere. Call it under the start lock.

    A bare descriptor, because a file object would give up ownership when it is garbage collected. Forked children share
    it and count as owners too; nothing that is exec'ed inherits it.
    """
    file = lock(root / "owners.lock", fcntl.LOCK_SH)
    assert file is not None
    return file


def is_owned(root: Path) -> bool:
    """Whether any owner lives. Call it under the start lock."""
    owners = root / "owners.lock"
    if is_free(owners, fcntl.LOCK_EX):
        return False
    # The watcher holds it exclusively for a moment once the last owner is gone: then the shared lock is refused, or, if
    # it let go in between, the exclusive one is free now (it cannot come back while we have the start lock).
    return is_free(owners, fcntl.LOCK_SH) and not is_free(owners, fcntl.LOCK_EX)


def ensure_watcher(root: Path) -> None:
    """Have a watcher for ``root``, before there is a server to watch. Call it under the start lock."""
    if is_free(root / "watcher.lock", fcntl.LOCK_EX):
        subprocess.run(
            [sys.executable, "-I", "-S", __file__, str(root)],
            check=True,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def recorded_pid(data: Path) -> int | None:
    """The process id in ``postmaster.pid`` if there is such a process, which may be anybody's by now."""
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        os.kill(pid, 0)
    except (FileNotFoundError, ValueError, ProcessLookupError):
        return None
    except PermissionError:
        pass
    return pid


def socket_folder(data: Path) -> str | None:
    """Where the socket of the server on ``data`` is, by ``postmaster.pid``; None if there is none yet."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        recorded_data, recorded_socket = lines[1], lines[4]
    except (FileNotFoundError, IndexError):
        return None
    here = str(data.resolve())
    if recorded_socket == recorded_data:
        return here  # the same folder may be mounted elsewhere for the process that started the server
    return recorded_socket if recorded_data == here else None  # else: a copy of another server's folder


def listening_pid(data: Path) -> int | None:
    """The process id of the server on ``data``, told by the kernel and so never a reused one; 0 when out of sight."""
    folder = socket_folder(data)
    if folder is None:
        return None
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(f"{folder}/.s.PGSQL.{PORT}")
        except OSError:
            return None
        return _peer_pid(connection)


def _peer_pid(connection: socket.socket) -> int:
    if sys.platform == "darwin":
        sol_local, local_peerpid = 0, 2
        return int(struct.unpack("i", connection.getsockopt(sol_local, local_peerpid, 4))[0])
    return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])


def is_coming_up(data: Path) -> bool:
    """Whether the process in ``postmaster.pid`` is a server of ``data``, so that one which does not listen yet will."""
    pid = recorded_pid(data)
    if pid is None:
        return False
    if sys.platform == "darwin":
        shown = subprocess.run(["ps", "-o", "comm=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return shown.stdout.strip().endswith("postgres")
    try:
        is_postgres = Path(f"/proc/{pid}/exe").readlink().name.startswith("postgres")
        return is_postgres and os.path.samefile(f"/proc/{pid}/cwd", data)
    except OSError:
        return False


def stop_if_unowned(root: Path) -> bool:
    """Stop the server and wait for its end, unless it has an owner. Call it under the start lock."""
    if is_owned(root):
        return False
    data = root / "pg"
    # An owner killed while starting the server leaves one that has its pid file but does not listen yet.
    wait_until(lambda: listening_pid(data) is not None or not is_coming_up(data), START_SECONDS)
    folder, pid = socket_folder(data), listening_pid(data)
    if pid:
        for number in (signal.SIGINT, signal.SIGQUIT):  # a fast shutdown, then an immediate one
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            if wait_until(lambda: recorded_pid(data) != pid, STOP_SECONDS):
                break
    if folder and folder != str(data.resolve()):
        with suppress(OSError):
            os.rmdir(folder)
    return True


def watch(root: Path) -> None:
    """Become the watcher of ``root`` in a process of its own, and return in the caller's; at once if there is one."""
    guard = lock(root / "watcher.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
    if guard is None or os.fork():
        return
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # meant for the owners; without them we end anyway
        signal.signal(number, signal.SIG_IGN)
    while True:
        # By its path each time: the folder may have been removed (we end) or made anew.
        file = os.open(root / "owners.lock", os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX)
        os.close(file)
        with serialised(root):
            if stop_if_unowned(root):
                os.close(guard)
                return


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
