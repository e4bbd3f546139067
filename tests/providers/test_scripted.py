"""The scripted model: the same transcript always gets the same answer, in whichever process."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentq.errors import ProviderError
from agentq.messages import AssistantMessage, Message, ToolMessage, ToolResult, UserMessage
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Fault, Scripted


def request(replies: int = 0, **more: Any) -> ModelRequest:
    messages: list[Message] = [UserMessage(text="go")]
    messages += [AssistantMessage(text=f"reply {i}") for i in range(replies)]
    return ModelRequest("m", "", messages, **more)


def test_step_i_answers_a_transcript_with_i_replies_however_often() -> None:
    model = Scripted(["zero", "one"])
    for _ in range(3):
        assert model.complete(request(1)).message.text == "one"
        assert model.complete(request(0)).message.text == "zero"


def test_steps_of_every_form() -> None:
    model = Scripted(
        [
            "text",
            Call("look", {"n": 1}),
            ["Both.", Call("a", id="x"), Call("b", '{"broken')],
            AssistantMessage(text="cut", stop="length"),
            lambda asked: f"{len(asked.messages)} messages",
            lambda asked: Call("late"),
        ]
    )
    replies = [model.complete(request(i)).message for i in range(6)]
    assert [(m.text, m.stop) for m in replies] == [
        ("text", "final"),
        ("", "tool_calls"),
        ("Both.", "tool_calls"),
        ("cut", "length"),
        ("5 messages", "final"),
        ("", "tool_calls"),
    ]
    assert [(c.id, c.name, c.arguments) for c in replies[2].calls] == [("x", "a", "{}"), ("call_2_1", "b", '{"broken')]
    assert (replies[1].calls[0].id, json.loads(replies[1].calls[0].arguments)) == ("call_1_0", {"n": 1})
    assert {(m.provider, m.model) for m in replies} == {("scripted", "m")}


def test_errors_are_raised_each_time_as_new_objects() -> None:
    error = ProviderError("auth_failed", "no key", status=401)
    model = Scripted([error, lambda _: ProviderError("network", "gone")])
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            model.complete(request())
        assert (caught.value.kind, caught.value.details) == ("auth_failed", {"status": 401})
        assert caught.value is not error
    with pytest.raises(ProviderError, match="gone"):
        model.complete(request(1))


def test_after_the_last_step_there_is_none() -> None:
    with pytest.raises(ProviderError, match="the script has no step 1") as caught:
        Scripted(["only"]).complete(request(1))
    assert caught.value.kind == "request_rejected"


def test_a_fault_fails_the_first_tries_of_the_step_after_it() -> None:
    model = Scripted(["zero", Fault("overloaded", times=2, retry_after=7), Fault("network"), "one"])
    kinds = []
    for _ in range(3):
        with pytest.raises(ProviderError) as caught:
            model.complete(request(1))
        kinds.append((caught.value.kind, caught.value.retry_after))
    assert kinds == [("overloaded", 7), ("overloaded", 7), ("network", None)]
    assert model.complete(request(1)).message.text == "one"
    assert model.complete(request(0)).message.text == "zero"


def test_a_fault_without_an_end_always_fails() -> None:
    model = Scripted([Fault("server_error", times=None)])
    for _ in range(3):
        with pytest.raises(ProviderError, match="server_error"):
            model.complete(request())


CHILD = """
import sys
from pathlib import Path
from agentq.errors import ProviderError
from agentq.messages import UserMessage
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Fault, Scripted
model = Scripted([Fault("overloaded", times=2, path=Path(sys.argv[1])), "fine"], log=Path(sys.argv[2]))
try:
    print(model.complete(ModelRequest("m", "", [UserMessage(text="go")])).message.text)
except ProviderError as error:
    print(error.kind)
"""


def test_faults_and_calls_are_counted_over_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "tries"), str(tmp_path / "log")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = [child.communicate(timeout=60)[0].strip() for child in children]
    assert sorted(answers) == ["fine", "overloaded", "overloaded"]
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [(line["step"], line["model"]) for line in lines] == [(0, "m")] * 3
    assert len({line["pid"] for line in lines}) == 3


def test_usage_grows_with_what_was_read_and_written() -> None:
    model = Scripted(["x" * 40, "y" * 400])
    short = model.complete(request(0)).usage
    longer = request(1)
    result = ToolMessage(result=ToolResult(call_id="c", name="t", text="z" * 4000))
    usage = model.complete(ModelRequest("m", "", [*longer.messages, result])).usage
    assert (short.output_tokens, usage.output_tokens) == (10, 100)
    assert short.input_tokens is not None
    assert usage.input_tokens is not None
    assert usage.input_tokens > short.input_tokens + 900


def test_a_delay_is_waited_for_but_not_beyond_the_time_of_the_call() -> None:
    started = time.monotonic()
    assert Scripted(["late"], delay_secs=0.1).complete(request()).message.text == "late"
    assert time.monotonic() - started >= 0.1
    with pytest.raises(ProviderError) as caught:
        Scripted(["late"], delay_secs=30).complete(request(timeout_secs=0.05))
    assert caught.value.kind == "network"
