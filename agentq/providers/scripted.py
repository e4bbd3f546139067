"""A model that answers from a script: for tests, demos and examples, with no key and no network."""

import copy
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentq.errors import ProviderError, ProviderFault
from agentq.messages import AssistantMessage, Stop, ToolCall, ToolMessage, Usage
from agentq.providers.base import Delta, ModelReply, ModelRequest


@dataclass(frozen=True)
class Call:
    """A tool call to make. ``arguments`` is an object, or text to be sent raw, broken JSON included."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str | None = None


class Fault:
    """Stands before a step and fails its first ``times`` tries (None: all), then lets it answer.

    Tries are counted in the file ``path``, one byte each, so that they add up over processes; without a path only in
    this object.
    """

    def __init__(
        self,
        kind: ProviderFault,
        times: int | None = 1,
        *,
        retry_after: float | None = None,
        path: Path | None = None,
    ) -> None:
        self.kind = kind
        self.times = times
        self.retry_after = retry_after
        self.path = path
        self._tries = 0
        self._lock = threading.Lock()

    def hit(self) -> ProviderError | None:
        """Count one try; the error it fails with, or None when the failures are used up."""
        if self.times is not None and self._count() > self.times:
            return None
        return ProviderError(self.kind, f"the script fails with {self.kind}", retry_after=self.retry_after)

    def _count(self) -> int:
        if self.path is not None:
            return _append(self.path, b".")
        with self._lock:
            self._tries += 1
            return self._tries


Answer = str | Call | Sequence[str | Call] | AssistantMessage | ProviderError
Step = Answer | Callable[[ModelRequest], Answer]


class Scripted:
    """Step i is the answer to a transcript with i replies in it, whoever asks, and however often.

    So the process keeps nothing: a repeated call gets the same answer, after a crash and in another worker too. On a
    thread the replies of earlier runs count. A step is a final text, a ``Call``, a list of calls with or without text,
    a whole AssistantMessage, a ProviderError to raise, or a function of the request that gives one of these; a
    ``Fault`` belongs to the step after it. After the last step comes ``request_rejected``. The usage is a quarter of
    the characters. ``delay_secs`` stands in for a slow server, ``log`` gets one JSON line a call. Streamed, a text
    comes word by word in that time. Scripts of one ``account`` wait for each other's rate limits, as with a real key;
    without one none does.
    """

    def __init__(
        self,
        steps: Sequence[Step | Fault],
        name: str = "scripted",
        *,
        delay_secs: float = 0.0,
        log: Path | None = None,
        account: str | None = None,
    ) -> None:
        self.name = name
        self._account = account
        self._delay_secs = delay_secs
        self._log = log
        self._steps = list(_with_faults(steps))

    def account(self) -> str | None:
        """See HasAccount."""
        return self._account

    def __repr__(self) -> str:
        return f"Scripted({self.name!r}, {len(self._steps)} steps)"

    def complete(self, request: ModelRequest) -> ModelReply:
        number = sum(isinstance(message, AssistantMessage) for message in request.messages)
        if self._log is not None:
            line = json.dumps({"step": number, "model": request.model, "pid": os.getpid()}) + "\n"
            _append(self._log, line.encode())
        if request.on_delta is None:
            self._wait(request.timeout_secs)
        message = self._answer(number, request)
        if request.on_delta is not None:
            self._write(message, request.on_delta, request.timeout_secs)
        usage = Usage(input_tokens=_tokens(_read(request)), output_tokens=_tokens(_written(message)))
        return ModelReply(message, usage)

    def _wait(self, timeout_secs: float) -> None:
        if self._delay_secs > 0:
            time.sleep(min(self._delay_secs, timeout_secs))
        if self._delay_secs > timeout_secs:
            raise ProviderError("network", f"no complete answer from the script within {timeout_secs:g} s")

    def _write(self, message: AssistantMessage, on_delta: Callable[[Delta], None], timeout_secs: float) -> None:
        """Word by word, in the time that a slow server would take."""
        deltas = [Delta("text", word) for word in re.findall(r"\s*\S+\s*", message.text)]
        deltas += [Delta("arguments", call.arguments, n, call.name) for n, call in enumerate(message.calls)]
        for delta in deltas:
            time.sleep(min(self._delay_secs, timeout_secs) / len(deltas))
            on_delta(delta)
        if self._delay_secs > timeout_secs:
            raise ProviderError("network", f"no complete answer from the script within {timeout_secs:g} s")

    def _answer(self, number: int, request: ModelRequest) -> AssistantMessage:
        faults, step = self._steps[number] if number < len(self._steps) else ([], None)
        for fault in faults:
            if error := fault.hit():
                raise error
        if step is None:
            raise ProviderError("request_rejected", f"the script has no step {number}")
        answer = step(request) if callable(step) else step
        if isinstance(answer, ProviderError):
            raise copy.copy(answer)
        message = answer if isinstance(answer, AssistantMessage) else _message(answer, number)
        stop: Stop = "tool_calls" if message.calls and message.stop == "final" else message.stop
        return message.model_copy(update={"stop": stop, "provider": self.name, "model": request.model})


def _with_faults(steps: Sequence[Step | Fault]) -> Iterator[tuple[list[Fault], Step | None]]:
    faults: list[Fault] = []
    for step in steps:
        if isinstance(step, Fault):
            faults.append(step)
        else:
            yield faults, step
            faults = []
    if faults:
        yield faults, None


def _message(answer: str | Call | Sequence[str | Call], number: int) -> AssistantMessage:
    parts = [answer] if isinstance(answer, str | Call) else answer
    calls = [part for part in parts if isinstance(part, Call)]
    return AssistantMessage(
        text="".join(part for part in parts if isinstance(part, str)),
        calls=tuple(_tool_call(call, f"call_{number}_{i}") for i, call in enumerate(calls)),
    )


def _tool_call(call: Call, default_id: str) -> ToolCall:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(dict(call.arguments))
    return ToolCall(id=default_id if call.id is None else call.id, name=call.name, arguments=arguments)


def _read(request: ModelRequest) -> Iterator[str]:
    yield request.instructions
    for message in request.messages:
        match message:
            case AssistantMessage():
                yield from _written(message)
            case ToolMessage(result=result):
                yield result.text
            case _:
                yield message.text


def _written(message: AssistantMessage) -> Iterator[str]:
    yield message.text
    for call in message.calls:
        yield call.name + call.arguments


def _tokens(texts: Iterator[str]) -> int:
    return max(1, sum(map(len, texts)) // 4)


def _append(path: Path, data: bytes) -> int:
    """Append as one piece, also beside other processes; the size of the file afterwards."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, data)
        return os.lseek(handle, 0, os.SEEK_CUR)
    finally:
        os.close(handle)
