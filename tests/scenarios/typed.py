"""Typed answers: of each kind, invalid ones, checked ones, and those that stand beside other calls."""

import json
import time
from dataclasses import dataclass

from pydantic import BaseModel

from agentq import Agent, AskAgain, RunContext
from agentq.providers.scripted import Call
from tests.scenarios.scenario import scenario
from tests.scenarios.scene import Scene
from tests.scenarios.stage import HOOK_SECS, Whole, at, look, pay


class Ticket(BaseModel):
    title: str
    urgent: bool = False


@dataclass
class Point:
    x: int
    y: int


SCHEMA = {
    "type": "object",
    "properties": {"sku": {"type": "string"}},
    "required": ["sku"],
    "additionalProperties": False,
}
LOOK, PAY = Call("look", {"n": 1}), Call("pay", {"n": 1})


def answer(**values: object) -> Call:
    return Call("final_answer", values)


def typed(name: str, output: object, *turns: object, **options: object) -> Agent:
    return Agent(name, model=Whole(turns, name), tools=[look, pay], output=output, **options)  # type: ignore[arg-type]


def is_open(ctx: RunContext, ticket: Ticket) -> Ticket | None:
    with at("check", run=ctx.run_id):
        time.sleep(HOOK_SECS)
        if ticket.title == "closed":
            raise AskAgain("'closed' is closed; open another one.")
        return ticket.model_copy(update={"urgent": True})


of_pydantic = typed("of_pydantic", Ticket, LOOK, answer(title="late"))
of_dataclass = typed("of_dataclass", Point, PAY, answer(x=1, y=2))
of_schema = typed("of_schema", SCHEMA, PAY, "no answer at all", json.dumps({"sku": "a-1"}))
invalid_twice = typed("invalid_twice", Ticket, PAY, answer(name="?"), answer(titel="?"))
checked = typed("checked", Ticket, LOOK, answer(title="closed"), answer(title="open"), output_check=is_open)
beside = typed("beside", Ticket, [answer(title="late"), PAY, LOOK], approve=["pay"])
beside_invalid = typed("beside_invalid", Ticket, [answer(name="?"), PAY, LOOK], answer(title="late"))


def _output(scene: Scene, agent: Agent, expected: object) -> None:
    handle = scene.enqueue(agent)
    result = scene.ended(handle).result()
    assert (result.stop_reason, result.output) == ("output", expected), result
    # Who does not have the agent gets plain values of the same.
    shown = json.loads(scene.cli("runs", "show", handle.id, "--json").splitlines()[0])
    assert shown["id"] == handle.id


@scenario(model=2, tool=1)
def answer_of_a_model_class(scene: Scene) -> None:
    _output(scene, of_pydantic, Ticket(title="late"))


@scenario(model=2, tool=1)
def answer_of_a_dataclass(scene: Scene) -> None:
    _output(scene, of_dataclass, Point(1, 2))


@scenario(model=3, tool=1)
def answer_of_a_schema(scene: Scene) -> None:
    _output(scene, of_schema, {"sku": "a-1"})


@scenario(model=3, tool=1)
def two_invalid_answers_end_the_run(scene: Scene) -> None:
    handle = scene.enqueue(invalid_twice)
    scene.failed(handle, "output_invalid")
    assert scene.results(handle)[0][0] == "pay"


@scenario(model=3, check=2)
def answer_that_is_asked_for_again(scene: Scene) -> None:
    _output(scene, checked, Ticket(title="open", urgent=True))


@scenario(in_model=1, after_model=1)
def answer_beside_other_calls(scene: Scene) -> None:
    """Nothing else of the reply runs, and nobody is asked."""
    handle = scene.enqueue(beside)
    assert scene.ended(handle).result().output == Ticket(title="late")
    assert [code for name, code, _ in scene.results(handle) if name != "final_answer"] == ["skipped", "skipped"]
    assert not scene.marked("effect")
    assert not handle.approvals(status=None)


@scenario(model=2, tool=2)
def invalid_answer_beside_other_calls(scene: Scene) -> None:
    handle = scene.enqueue(beside_invalid)
    assert scene.ended(handle).result().output == Ticket(title="late")
    found = [each for each in scene.results(handle) if each[0] != "final_answer"]
    assert [name for name, _, _ in found] == ["pay", "look"]
    assert found[1][1] is None
