"""K1: a fence around the whole answer is taken off, nothing inside is touched, all else is one invalid answer."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from agentq import Agent, Handle, RunFailedError, UserMessage
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over, assert_strict_and_clean
from tests.engine.drain import Drain


class Number(BaseModel):
    a: int


class Text(BaseModel):
    msg: str


NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TEXT = {"type": "object", "properties": {"msg": {"type": "string"}}, "required": ["msg"]}
BASH = {"msg": "run ```bash\nls\n```"}


def run(database: Database, output: Any, *script: Any) -> Handle:
    drain = Drain(database, test := Agent("test", model=Scripted([*script]), output=output))
    handle = drain.enqueue(test)
    drain.work()
    assert_over(database, handle)
    assert_strict_and_clean(database)
    return handle


@pytest.mark.parametrize("output", [(Number, Number(a=1)), (NUMBER, {"a": 1})], ids=["type", "schema"])
@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}',
        '```json\n{"a":1}\n```',
        '```\n{"a":1}\n```',
        '```JSON\r\n{"a":1}\r\n```\n\n',
        '``` json\n{"a":1}```',
        '\ufeff{"a":1}',
        '\ufeff```json\n{"a":1}\n```',
        '  \n```json {"a":1} ```',
    ],
)
def test_an_answer_in_a_fence_or_behind_a_mark_is_taken_at_once(database: Database, output: Any, text: str) -> None:
    kind, value = output
    result = run(database, kind, text, "never").result()
    assert (result.stop_reason, result.output) == ("output", value)


@pytest.mark.parametrize("output", [(Text, Text(**BASH)), (TEXT, BASH)], ids=["type", "schema"])
@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "\ufeff{}"])
def test_backticks_in_a_string_stay(database: Database, output: Any, form: str) -> None:
    kind, value = output
    assert run(database, kind, form.format(json.dumps(BASH)), "never").result().output == value
    assert run(database, kind, Call("final_answer", BASH), "never").result().output == value


@pytest.mark.parametrize("kind", [Number, NUMBER], ids=["type", "schema"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('Sure! {"a": 1}', "not valid JSON"),
        ('{"a": 1}\nAnything else?', "not valid JSON"),
        ('```bash\nls\n```\n```json\n{"a": 1}\n```', "not valid JSON"),
        ('```json\n{"a": 1}', "not valid JSON"),
        ("```json\n```", "not valid JSON"),
        ('{"a": 1, "a": }', "not valid JSON"),
        ('{"a": Infinity}', "Infinity is not JSON"),
        ("{}", "a: required"),
        ('{"a": "one"}', "a: "),
        ("[1]", "answer: "),
    ],
)
def test_anything_else_is_one_invalid_answer_with_a_precise_message(
    database: Database, kind: Any, text: str, says: str
) -> None:
    handle = run(database, kind, text, '{"a": 1}')
    assert handle.result().stop_reason == "output"
    note = handle.messages()[2]
    assert isinstance(note, UserMessage)
    assert says in note.text
    assert handle.run().model_calls == 2
    # The second ends the run.
    handle = run(database, kind, text, text, '{"a": 1}')
    with pytest.raises(RunFailedError, match="2 answers that do not fit") as caught:
        handle.result()
    assert caught.value.code == "output_invalid"
    assert says in caught.value.message
