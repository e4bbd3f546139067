"""Which of its limits a run has reached, as the error that it ends with. No I/O, no clock."""

from agentq.errors import ErrorInfo
from agentq.run import Snapshot


def over_limit(snapshot: Snapshot) -> ErrorInfo | None:
    """The error of a run that may make no further model call; None where it may."""
    limits, progress = snapshot.limits, snapshot.progress
    if progress.model_calls >= limits.model_calls:
        return _over("model_calls", limits.model_calls)
    if limits.tokens is not None and progress.usage.total >= limits.tokens:
        return _over("tokens", limits.tokens)
    if limits.usd is not None and (progress.usage.known_cost or 0) >= limits.usd:
        return _over("usd", float(limits.usd))
    return None


def too_many_calls(snapshot: Snapshot, asked: int) -> ErrorInfo | None:
    """The error of a run whose model asks for more calls than are left; None where all of them may be made."""
    used, most = snapshot.progress.tool_calls, snapshot.limits.tool_calls
    return _over("tool_calls", most, used=used, asked=asked) if used + asked > most else None


def out_of_time(snapshot: Snapshot) -> ErrorInfo | None:
    """The error of a run whose time limit is over, seen before a step of it is begun; None while there is time."""
    if snapshot.secs_left is None or snapshot.secs_left > 0:
        return None
    return time_is_over(snapshot.limits.run_secs or 0.0)


def time_is_over(run_secs: float) -> ErrorInfo:
    """The error of a run that has reached its time limit."""
    return _over("run_secs", run_secs)


def _over(name: str, value: float, **more: int) -> ErrorInfo:
    what = {"run_secs": "seconds", "usd": "US dollars"}.get(name, name.replace("_", " "))
    message = f"the run reached its limit of {value:g} {what}"
    if more:
        message += f": {more['used']} were made and the model asked for {more['asked']} more"
    details = {"limit": name, "value": value, **more}
    return ErrorInfo(code="limit_exceeded", message=message, details=details)
