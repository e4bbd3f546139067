"""Find the agents of a process: modules or files named by ``AGENTQ_AGENTS``."""

import difflib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from agentq.agent import AgentSpec
from agentq.arguments import first_line
from agentq.errors import ConfigError, UnknownAgentError

PLACES = "--agents/AGENTQ_AGENTS"
# Where a traceback goes through code that the user did not write.
_NOT_THEIRS = (
    str(Path(__file__).parent),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
    sysconfig.get_path("stdlib"),
    "<frozen ",
)


def load_agents(places: str) -> dict[str, AgentSpec]:
    """Agents by name from ``"package.module"``, ``"module:variable"`` or ``"file.py"``, comma-separated.

    The agents behind their tools come along. Raises ConfigError that names the place and what is wrong with it.
    """
    found: list[AgentSpec] = []
    for place in filter(None, (part.strip() for part in places.split(","))):
        found += _from_place(place)
    return by_name(found)


def by_name(agents: Iterable[AgentSpec]) -> dict[str, AgentSpec]:
    """The agents and those they call, by name. Raises ConfigError when two share a name."""
    names: dict[str, AgentSpec] = {}
    for agent in _with_callees(agents, set()):
        if names.setdefault(agent.name, agent) is not agent:
            raise ConfigError(f"two agents are called {agent.name!r}; names tell runs apart, give one another name")
    return names


def _with_callees(agents: Iterable[AgentSpec], seen: set[int]) -> Iterator[AgentSpec]:
    for agent in agents:
        if id(agent) not in seen:
            seen.add(id(agent))
            yield agent
            yield from _with_callees((tool.agent for tool in agent.tools.values() if tool.agent is not None), seen)


def unknown(name: str, known: Mapping[str, object] | Iterable[str]) -> UnknownAgentError:
    """The error for a name that nobody has."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    listed = ", ".join(names) or "none; set AGENTQ_AGENTS or start a worker that has it"
    return UnknownAgentError(f"there is no agent {name!r}{hint} Known: {listed}", agent=name, known=names)


def _from_place(place: str) -> list[AgentSpec]:
    where, _, attribute = place.partition(":")
    module = _import(where)
    if attribute:
        agent = getattr(module, attribute, None)
        if not isinstance(agent, AgentSpec):
            raise ConfigError(f"{PLACES}: {where} has no agent called {attribute!r}")
        return [agent]
    agents = [value for value in vars(module).values() if isinstance(value, AgentSpec)]
    if not agents:
        raise ConfigError(f"{PLACES}: {where} defines no Agent at its top level")
    return agents


def _import(where: str) -> ModuleType:
    try:
        if where.endswith(".py"):
            return _from_file(Path(where).resolve())
        if "" not in sys.path:
            sys.path.insert(0, "")
        return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        raise ConfigError(_problem(where, error)) from error


def _problem(where: str, error: BaseException) -> str:
    """One line: what is wrong, and where in the user's own code."""
    place = _place(error)
    if isinstance(error, ConfigError):
        return f"{place}: {error}" if place else str(error)
    if isinstance(error, ModuleNotFoundError) and place is None:
        return f"{PLACES}: cannot import {where!r}: {error}"
    return f"{PLACES}: importing {where!r} failed in {place or where}: {type(error).__name__}: {first_line(error)}"


def _place(error: BaseException) -> str | None:
    """The last of the user's own lines that led to the error: ``bad.py, line 3, in helper``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_NOT_THEIRS):
            at = f"{Path(frame.filename).name}, line {frame.lineno}"
            return at if frame.name == "<module>" else f"{at}, in {frame.name}"
    return None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{PLACES}: there is no file {path}")
    main = sys.modules.get("__main__")
    if main is not None and Path(getattr(main, "__file__", None) or "/").resolve() == path:
        return main
    for loaded in list(sys.modules.values()):
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
    # A file may be called as a module that others have imported already, such as celery.py.
    name = path.stem if path.stem not in sys.modules else f"agentq_agents_{path.stem}_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{PLACES}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # Half a module must not pass for the whole one at the next try.
        del sys.modules[name]
        raise
    return module
