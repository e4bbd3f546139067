"""An agent's fingerprint: the same wherever it is made, another one for each thing that counts, and only for these."""

import functools
import os
import subprocess
import sys
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from agentq import Agent, ApprovalRule, ConfigError, Happened, Hooks, NotHappened, RunContext, Tool, tool
from agentq.fingerprint import fingerprint
from agentq.providers.scripted import Scripted


class Watch(Hooks):
    pass


class Guard(Hooks):
    required = True


class Facts:
    def recall(self, ctx: RunContext, text: str) -> list[str]:
        return []


class Place(BaseModel):
    city: str
    country: str


class Spot(BaseModel):
    city: str
    street: str


class Mine:
    name = "mine"

    def complete(self, request: Any) -> Any:
        raise AssertionError


class Other(Mine):
    name = "other"


def search(query: str, tags: set[str] = {"a", "b", "c"}) -> str:  # noqa: B006 - what is shown of it is the question
    """Find something."""
    return query


class Wish(BaseModel):
    tags: set[str] = {"a", "b", "c"}
    places: dict[str, frozenset[str]] = {"in": frozenset({"a", "b", "c"})}


def pick(wish: Wish, other: Annotated[set[str], Field(examples=[{"a", "b", "c"}, {"d", "e", "f"}])]) -> str:
    """Pick one."""
    return ""


def refund(order_id: str, amount: float, note: str = "") -> str:
    """Pay money back."""
    return f"{order_id}: {amount} {note}"


def found(order_id: str) -> Happened | NotHappened:
    return NotHappened()


def too_much(ctx: RunContext, arguments: dict[str, Any]) -> bool:
    return True


def far_too_much(ctx: RunContext, arguments: dict[str, Any]) -> bool:
    return True


def is_near(ctx: RunContext, value: Any) -> None: ...


def made(**options: Any) -> Any:
    return tool(**options)


def narrower(order_id: str, amount: int, note: str = "") -> str:
    """Pay money back."""
    return order_id


def with_more(order_id: str, amount: float, note: str = "", fast: bool = False) -> str:
    """Pay money back."""
    return order_id


def other_default(order_id: str, amount: float, note: str = "none") -> str:
    """Pay money back."""
    return order_id


def described(order_id: Annotated[str, Field(description="as on the bill")], amount: float, note: str = "") -> str:
    """Pay money back."""
    return order_id


def refunds(function: Any, **options: Any) -> Tool:
    return tool(name="refund", **options)(function)


def make(**changes: Any) -> Agent:
    definition = {
        "model": "openai:gpt-5.2",
        "fallback": ["anthropic:a", "openai:b"],
        "instructions": "Help customers.",
        "tools": [search, refund],
        "approve": {"refund": too_much},
        "output": Place,
        "hooks": [Watch(), Guard()],
    }
    return Agent(changes.pop("name", "support"), **(definition | changes))


HELPER = Agent("helper", model="openai:x", instructions="Look it up.", description="Looks things up.")
OTHER_HELPER = Agent("other", model="openai:x", description="Looks things up.")
CHANGED_HELPER = Agent("helper", model="openai:y", instructions="Other words.", description="Looks things up.")


COUNTS: dict[str, dict[str, Any]] = {
    "the model": {"model": "openai:gpt-5"},
    "a fallback less": {"fallback": ["anthropic:a"]},
    "fallbacks in another order": {"fallback": ["openai:b", "anthropic:a"]},
    "a model of one's own": {"model": Mine()},
    "instructions": {"instructions": "Help people."},
    "a tool less": {"tools": [refund]},
    "a tool more": {"tools": [search, refund, is_near]},
    "a tool's name": {"tools": [made(name="find")(search), refund]},
    "a tool's description": {"tools": [made(description="Find.")(search), refund]},
    "a parameter's type": {"tools": [search, refunds(narrower)]},
    "a parameter more": {"tools": [search, refunds(with_more)]},
    "a parameter's default": {"tools": [search, refunds(other_default)]},
    "a parameter's description": {"tools": [search, refunds(described)]},
    "a tool that may run again": {"tools": [made(idempotent=True)(search), refund]},
    "a tool that people are asked about": {"tools": [search, refunds(refund, on_unknown="ask")]},
    "a tool with a probe": {"tools": [search, refunds(refund, on_unknown=found)]},
    "an approval less": {"approve": {}},
    "an approval more": {"approve": {"refund": too_much, "search": True}},
    "an approval of all calls": {"approve": ["refund"]},
    "an approval by another function": {"approve": {"refund": far_too_much}},
    "an approval that expires otherwise": {
        "approve": {"refund": ApprovalRule(too_much, deadline_secs=60, on_expiry="approve")}
    },
    "no output": {"output": None},
    "the output": {"output": Spot},
    "how the output is given": {"output_mode": "tool"},
    "a check of the output": {"output_check": is_near},
    "what a raised exception does": {"on_tool_exception": "fail"},
    "a function for exceptions": {"on_tool_exception": str},
    "a hook less": {"hooks": [Watch()]},
    "hooks in another order": {"hooks": [Guard(), Watch()]},
    "a memory": {"memory": Facts()},
    "the model's settings": {"model_settings": {"temperature": 0}},
    "a sub-agent": {"tools": [search, refund, HELPER.as_tool()]},
}
DOES_NOT: dict[str, dict[str, Any]] = {
    "its own name": {"name": "other"},
    "limits": {"limits": {"model_calls": 3, "tokens": 10, "run_secs": 5}},
    "tools in another order": {"tools": [refund, search]},
    "a tool's limit": {"tools": [made(timeout=3)(search), refund]},
    "a tool's queue": {"tools": [made(queue="gpu")(search), refund]},
    "where a tool runs": {"tools": [made(inline=True)(search), refund]},
    "time limits": {"model_timeout_secs": 5, "hook_timeout_secs": 5},
    "its own description": {"description": "Helps."},
    "what a change does": {"on_change": "hold"},
    "an approval's deadline": {"approve": {"refund": ApprovalRule(too_much, deadline_secs=60)}},
    "a function in a partial": {"approve": {"refund": functools.partial(too_much)}},
    "room around the instructions": {"instructions": "Help customers.  \n"},
    "another object of the same hook": {"hooks": [Watch(), Guard()]},
}


@pytest.mark.parametrize("change", COUNTS.values(), ids=COUNTS)
def test_what_counts_makes_another_fingerprint(change: dict[str, Any]) -> None:
    assert make(**change).fingerprint != make().fingerprint


def test_each_of_the_changes_makes_one_of_its_own() -> None:
    assert len({make(**change).fingerprint for change in COUNTS.values()}) == len(COUNTS)


@pytest.mark.parametrize("change", DOES_NOT.values(), ids=DOES_NOT)
def test_what_does_not_count_leaves_it(change: dict[str, Any]) -> None:
    assert make(**change).fingerprint == make().fingerprint


def test_of_a_sub_agent_its_name_counts_and_what_the_model_reads_but_not_its_definition() -> None:
    def with_helper(helper: Agent, **options: Any) -> str:
        return make(tools=[search, refund, helper.as_tool(name="ask", **options)]).fingerprint

    assert with_helper(HELPER) == with_helper(CHANGED_HELPER)
    assert with_helper(HELPER) != with_helper(OTHER_HELPER)
    assert with_helper(HELPER) != with_helper(HELPER, description="Ask for help.")


def test_of_models_of_ones_own_class_and_name_count() -> None:
    def steps(*said: str) -> str:
        return make(model=Scripted([*said])).fingerprint

    assert steps("one") == steps("two", "three")
    assert len({make(model=model).fingerprint for model in (Mine(), Other(), Scripted([]))}) == 3


@pytest.mark.parametrize("kind", [Literal["a", "b"], Literal["b", "a"]])
def test_orders_that_the_model_reads_are_kept(kind: Any) -> None:
    def pick(choice: str) -> str:
        """Pick."""
        return choice

    pick.__annotations__["choice"] = kind
    other = tool(pick)
    pick.__annotations__["choice"] = Literal["a", "b", "c"]
    assert make(tools=[other], approve={}).fingerprint != make(tools=[tool(pick)], approve={}).fingerprint


@pytest.mark.parametrize("name", ["default", "examples", "required", "description"])
def test_a_parameter_may_be_called_as_a_keyword_of_schemas(name: str) -> None:
    def of(*choices: str) -> str:
        def choose(tags: set[str], choice: str) -> str:
            """Choose."""
            return choice

        choose.__annotations__["choice"] = Annotated[Literal[choices], Field(alias=name)]
        return make(tools=[tool(choose)], approve={}).fingerprint

    assert of("a", "b") != of("b", "a")


SCRIPT = """
import sys
sys.path.insert(0, "tests/unit")
import importlib.util
spec = importlib.util.spec_from_file_location("some_other_name", "tests/unit/test_fingerprint.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
tools = [module.search, module.refund, module.pick, module.HELPER.as_tool()]
print(module.make(tools=tools, memory=module.Facts(), output=module.Wish).fingerprint)
"""


def test_it_is_the_same_in_every_process_whatever_the_seed_of_hashes_and_the_modules_name() -> None:
    mine = make(tools=[search, refund, pick, HELPER.as_tool()], memory=Facts(), output=Wish).fingerprint
    for seed in ("0", "1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == mine


def test_it_is_the_one_that_runs_have_stored() -> None:
    """Another one would hold, or end, the runs of everybody who updates: what is hashed may only be added to."""
    assert Agent("a", model="openai:gpt-5.2").fingerprint == fingerprint(Agent("b", model="openai:gpt-5.2"))
    assert Agent("a", model="openai:gpt-5.2").fingerprint == "b3bee68ffb73"
    assert make(output=None).fingerprint == "6c566d605038"


def test_a_version_of_ones_own_takes_its_place() -> None:
    assert make().version == make().fingerprint
    first, second = make(version="2026-03"), make(version="2026-03", instructions="Other words.")
    assert first.version == second.version == "2026-03"
    assert first.fingerprint != second.fingerprint


def test_it_follows_hooks_that_are_set_later() -> None:
    agent = make()
    before = agent.fingerprint
    agent.hooks = (Watch(),)
    assert agent.fingerprint != before


@pytest.mark.parametrize("version", ["", "x" * 101, 3, "a\nb", "a\x00b"])
def test_a_version_is_a_short_text_that_can_be_shown(version: Any) -> None:
    with pytest.raises(ConfigError, match="agent 'support': version"):
        make(version=version)


def test_on_change_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match="on_change is 'continue', 'hold' or 'fail', not 'stop'"):
        make(on_change="stop")
