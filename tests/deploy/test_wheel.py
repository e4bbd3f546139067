"""The wheel has all that a machine needs, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import agentq

ROOT = Path(__file__).parents[2]
MIGRATIONS = "agentq/storage/migrations"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"agentq_celery-{agentq.__version__}.dist-info/{name}").decode()


def test_the_wheel_installs_the_two_packages_and_no_other(names: set[str]) -> None:
    tops = {PurePosixPath(name).parts[0] for name in names}
    assert tops == {"agentq", "agentq_workers", f"agentq_celery-{agentq.__version__}.dist-info"}


def test_every_module_of_the_two_packages_is_in_the_wheel(names: set[str]) -> None:
    modules = {
        path.relative_to(root).as_posix()
        for root, package in ((ROOT, "agentq"), (ROOT / "workers", "agentq_workers"))
        for path in (root / package).rglob("*.py")
    }
    assert modules - names == set()


def test_type_marker_and_migrations_are_in_the_wheel(names: set[str]) -> None:
    assert {"agentq/py.typed", f"{MIGRATIONS}/env.py", f"{MIGRATIONS}/script.py.mako"} <= names
    assert any(name.startswith(f"{MIGRATIONS}/versions/") and name.endswith(".py") for name in names)


def test_no_tests_caches_or_settings_are_in_the_wheel(names: set[str]) -> None:
    unwanted = ("test", "conftest", "__pycache__", ".env", ".agentq")
    # The pytest plugin that users load is the one exception.
    found = [n for n in names if n != "agentq/testing.py" and any(u in part for part in n.split("/") for u in unwanted)]
    assert found == []


def test_the_command_is_agentq_and_needs_python_3_11(wheel: Path) -> None:
    assert "agentq = agentq.cli:main" in metadata(wheel, "entry_points.txt")
    about = metadata(wheel, "METADATA").splitlines()
    assert "Name: agentq-celery" in about
    assert "Requires-Python: >=3.11" in about
    assert "License-Expression: Apache-2.0" in about
    assert not [line for line in about if line.startswith(("Requires-Dist: celery[", "Requires-Dist: kombu["))]
