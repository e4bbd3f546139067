"""What README and guide show is there: names, commands, settings, links."""

import re
from pathlib import Path

import pytest

import agentq
from agentq.cli import COMMANDS
from agentq.config import Settings, variable
from agentq.limits import Limits

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


def test_the_example_of_the_readme_makes_an_agent() -> None:
    shop, scripted = blocks(ROOT / "README.md")[:2]
    names: dict[str, object] = {}
    exec(compile(shop, "shop.py", "exec"), names)
    support = names["support"]
    assert isinstance(support, agentq.Agent)
    assert set(support.tools) == {"lookup_order", "refund"}
    exec(compile(scripted, "scripted.py", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_block_is_python(page: Path) -> None:
    for block in blocks(page):
        compile(block, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_one(page: Path) -> None:
    for word in re.findall(r"^\$ agentq ([a-z-]+)|`agentq ([a-z-]+)", page.read_text(), flags=re.MULTILINE):
        assert (word[0] or word[1]) in COMMANDS, word


def test_the_settings_of_the_readme_are_all_and_their_defaults_are_right() -> None:
    shown = dict(re.findall(r"^\| `(AGENTQ_[A-Z_]+)`[^|]*\| `?([^|`]*)`? ?\|", README, flags=re.MULTILINE))
    for name, field in Settings.model_fields.items():
        assert variable(name) in README, name
        if variable(name) in shown and field.default not in (None, ""):
            assert shown[variable(name)].split("`")[0].strip() in (
                str(field.default),
                f"{field.default:g}" if isinstance(field.default, float) else "",
            )


def test_the_limits_of_the_readme_are_the_defaults() -> None:
    for name, field in Limits.model_fields.items():
        value = "none" if field.default is None else f"{field.default:g}"
        assert re.search(rf"^\| `{name}`[^|]*\| {value} \|$", README, flags=re.MULTILINE), name


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200
