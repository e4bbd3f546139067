"""``agentq demo``: what a newcomer sees first."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Program, processes_with
from tests.providers.fake_server import Answer, Asked, response, serve
from tests.waiting import eventually

pytestmark = [pytest.mark.xdist_group("cli-demo"), pytest.mark.timeout(180), pytest.mark.crash]


@pytest.fixture
def place(program: Program, short_folder: Path) -> Path:
    """Where the demo makes its temporary folder."""
    program.settings = {"TMPDIR": str(short_folder)}
    return short_folder


def test_a_killed_workers_run_is_finished_by_the_other_and_nothing_is_left(program: Program, place: Path) -> None:
    # Whatever is configured, the demo has a database and a broker of its own.
    done = program("demo", timeout=120, AGENTQ_DATABASE_URL="postgresql://127.0.0.1:1/x", NO_COLOR="1")
    assert done.code == 0, done.out + done.err
    for words in ("kill -9 of worker", "step recovered", "attempt 2", "waits for a person", "approved by", "answers"):
        assert words in done.out
    assert "\x1b" not in done.out
    assert done.out.splitlines()[-3] == "== what next"
    killed = done.out.partition("kill -9 of worker ")[2][0]
    resumed = next(line for line in done.out.splitlines() if "attempt 2" in line)
    assert f"[worker {'B' if killed == 'A' else 'A'}]" in resumed
    assert processes_with(str(place)) == []
    assert os.listdir(place) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(program: Program, place: Path, number: signal.Signals) -> None:
    demo = program.start("demo")
    demo.says("Ready after", "enqueued")
    assert demo.end(number) == 130
    assert processes_with(str(place)) == []
    assert os.listdir(place) == []


def test_a_killed_demo_leaves_no_process(program: Program, place: Path) -> None:
    demo = program.start("demo")
    demo.says("Ready after")
    folder = next(place.iterdir())
    demo.end(signal.SIGKILL)
    eventually(lambda: not processes_with(str(folder)), within=60, what="no process is left")


def test_a_model_without_a_key_is_refused_at_once(program: Program) -> None:
    done = program("demo", "--model", "openai:gpt-5.2")
    assert done.code == 2
    assert "OPENAI_API_KEY" in done.err


def chat(asked: Asked) -> Answer:
    """Chat Completions as a shop's model would answer: look the order up, act, and say so."""
    messages = asked.body["messages"]
    question = next(message["content"] for message in messages if message["role"] == "user")
    is_broken = "broken" in question
    order = "77" if is_broken else "78"
    calls = [
        ("lookup_order", {"order_id": order}),
        ("refund", {"order_id": order, "amount": 80.0}) if is_broken else ("track_parcel", {"parcel": "P-4712"}),
    ]
    turn = sum(message["role"] == "assistant" for message in messages)
    reply: dict[str, Any] = {"role": "assistant", "content": f"Done with order {order}."}
    if turn < len(calls):
        name, arguments = calls[turn]
        function = {"name": name, "arguments": json.dumps(arguments)}
        reply = {"role": "assistant", "content": None}
        reply["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
    reason = "tool_calls" if turn < len(calls) else "stop"
    usage = {"prompt_tokens": 50, "completion_tokens": 10, "total_tokens": 60}
    return response({"choices": [{"index": 0, "message": reply, "finish_reason": reason}], "usage": usage})


def test_the_demo_runs_the_same_on_a_model_behind_http(program: Program, place: Path) -> None:
    with serve(chat) as server:
        keys = {"OPENAI_API_KEY": "sk-secret", "OPENAI_BASE_URL": f"{server.url}/v1"}
        done = program("demo", "--model", "openai:gpt-5.2", timeout=150, NO_COLOR="1", **keys)
    assert done.code == 0, done.out + done.err
    for words in ("kill -9 of worker", "step recovered", "waits for a person", "Done with order 77."):
        assert words in done.out
    assert "sk-secret" not in done.out + done.err
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer sk-secret"}
    assert os.listdir(place) == []
