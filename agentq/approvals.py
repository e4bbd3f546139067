"""Approvals: which calls wait for a person, for how long, and what the person may answer."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from agentq.context import RunContext
from agentq.errors import ConfigError, InputError
from agentq.limits import is_duration
from agentq.run import OnExpiry
from agentq.text import clean, cut

Predicate = Callable[[RunContext, dict[str, Any]], bool]

_MAX_REASON_CHARS = 4_000


@dataclass(frozen=True)
class ApprovalRule:
    """When calls of a tool wait for a person, and what becomes of them when nobody decides in time.

    ``when(ctx, arguments)`` says which calls do, from the checked arguments (None: all of them); one that raises, or
    takes longer than the agent's ``hook_timeout_secs``, counts as yes. After ``deadline_secs`` (None: never) no
    decision is taken any more, and ``on_expiry`` is done: ``"report"``, the tool does not run and the model is told
    ``expired``; ``"approve"``, it runs; ``"fail"``, the run fails with ``approval_expired``. Raises ConfigError.
    """

    when: Predicate | None = None
    deadline_secs: float | None = None
    on_expiry: OnExpiry = "report"

    def __post_init__(self) -> None:
        if self.when is not None and not _takes_two(self.when):
            raise ConfigError(f"when is a function of the context and the arguments, not {self.when!r}")
        check_deadline(self.deadline_secs, self.on_expiry)


class NeedsApproval(Exception):
    """Raise it in a tool, before anything took effect: a person is asked, and the tool runs again when it is approved.

    ``ctx.approved`` tells the second run from the first. ``reason`` is shown to the person; ``deadline_secs`` and
    ``on_expiry`` are those of ``ApprovalRule``, where the agent has none for the tool. Raises ConfigError.
    """

    def __init__(self, reason: str = "", *, deadline_secs: float | None = None, on_expiry: OnExpiry = "report") -> None:
        super().__init__(reason)
        check_deadline(deadline_secs, on_expiry)
        self.reason = cut(clean(str(reason)), _MAX_REASON_CHARS)
        self.deadline_secs = deadline_secs
        self.on_expiry: OnExpiry = on_expiry


class Deferred(Exception):
    """Raise it in a tool that has handed its call to the outside: the run waits as a row until somebody completes it.

    Hand over ``ctx.run_id`` and ``ctx.call_id``: whoever has the result calls ``client.handle(run_id).complete(call_id,
    result)``, or ``fail``. After ``deadline_secs`` (None: never) none is taken any more, and ``on_expiry`` is done:
    ``"report"``, the model is told ``expired``; ``"fail"``, the run fails with ``approval_expired``. Raises
    ConfigError.
    """

    def __init__(
        self, note: str = "", *, deadline_secs: float | None = None, on_expiry: Literal["report", "fail"] = "report"
    ) -> None:
        super().__init__(note)
        check_deadline(deadline_secs, on_expiry, allowed=("report", "fail"))
        self.note = cut(clean(str(note)), _MAX_REASON_CHARS)
        self.deadline_secs = deadline_secs
        self.on_expiry: OnExpiry = on_expiry


@dataclass(frozen=True)
class Approve:
    """Let a call run. ``arguments`` replace the model's, and must fit the tool; ``reason`` is kept on the record.

    ``sticky``: later calls of the tool in this run are approved as well, and those of it that wait now.
    """

    arguments: Mapping[str, Any] | None = None
    reason: str | None = None
    sticky: bool = False

    def __post_init__(self) -> None:
        _check_words(self)
        if self.sticky and self.arguments is not None:
            raise InputError("changed arguments are for one call: leave out sticky, or the arguments")


@dataclass(frozen=True)
class Reject:
    """Do not let a call run; the model sees ``reason``. ``sticky`` rejects the tool for the rest of the run."""

    reason: str | None = None
    sticky: bool = False

    def __post_init__(self) -> None:
        _check_words(self)


@dataclass(frozen=True)
class Respond:
    """Do not run the tool: the model gets ``result``, as if the tool had returned it."""

    result: Any
    reason: str | None = None

    def __post_init__(self) -> None:
        _check_words(self)


@dataclass(frozen=True)
class Settle:
    """What became of a call whose worker was lost; see ``Handle.settle``."""

    happened: bool | None
    result: Any = None
    reason: str | None = None

    def __post_init__(self) -> None:
        _check_words(self)
        if self.happened is not None and not isinstance(self.happened, bool):
            raise InputError(f"happened is True, False or None (nobody can tell), not {self.happened!r}")
        if self.happened is not True and self.result is not None:
            raise InputError("a call that did not take effect has no result; leave it out, or say that it happened")


@dataclass(frozen=True)
class Complete:
    """The result of a call that was handed to the outside, as if its tool had returned it."""

    result: Any = None
    reason: str | None = None

    def __post_init__(self) -> None:
        _check_words(self)


@dataclass(frozen=True)
class Fail:
    """A call that was handed to the outside has failed; the model sees ``message``, as of a ToolError."""

    message: str
    reason: str | None = None

    def __post_init__(self) -> None:
        _check_words(self)


Decision = Approve | Reject | Respond | Settle | Complete | Fail


def _check_words(decision: Any) -> None:
    """Raises InputError for what is no text, or neither yes nor no: a record would hold it for good."""
    what = type(decision).__name__
    for name in ("reason", "message"):
        said = getattr(decision, name, None)
        if said is not None and not isinstance(said, str):
            raise InputError(f"{what}: {name} is a text, not {said!r}")
    if not isinstance(getattr(decision, "sticky", False), bool):
        raise InputError(f"{what}: sticky is True or False, not {decision.sticky!r}")


def checked_rules(where: str, given: Any, tools: Iterable[str]) -> dict[str, ApprovalRule]:
    """The rule of each tool that has one, from an agent's ``approve``. Raises ConfigError."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"{where}: approve is a list, such as [{given!r}], or maps names of tools to rules")
    rules = given if isinstance(given, Mapping) else {_name(where, name): True for name in given}
    known = tuple(tools)
    for name in rules:
        if _name(where, name) not in known:
            listed = ", ".join(known) or "none"
            raise ConfigError(f"{where}: approve names {name!r}, which is not one of its tools: {listed}")
    return {name: found for name, rule in rules.items() if (found := _rule(where, name, rule)) is not None}


def _name(where: str, name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"{where}: approve holds names of tools, not {name!r}")
    return name


def _rule(where: str, name: str, rule: Any) -> ApprovalRule | None:
    if isinstance(rule, ApprovalRule):
        return rule
    if rule is True or rule is False:
        return ApprovalRule() if rule else None
    if callable(rule) and not isinstance(rule, type):
        try:
            return ApprovalRule(when=rule)
        except ConfigError as error:
            raise ConfigError(f"{where}: approve[{name!r}]: {error}") from error
    raise ConfigError(f"{where}: approve[{name!r}] is True, False, a function or an ApprovalRule, not {rule!r}")


def _takes_two(function: Any) -> bool:
    if not callable(function) or inspect.iscoroutinefunction(function):
        return False
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:
        # One written in C may have no signature to look at.
        return True
    return True


def check_deadline(deadline_secs: object, on_expiry: object, allowed: tuple[str, ...] = get_args(OnExpiry)) -> None:
    """Raises ConfigError."""
    if deadline_secs is not None and not is_duration(deadline_secs):
        raise ConfigError(f"deadline_secs is a positive number of seconds, not {deadline_secs!r}")
    if on_expiry not in allowed:
        raise ConfigError(f"on_expiry is one of {', '.join(map(repr, allowed))}, not {on_expiry!r}")
