"""An agent is checked when it is made: every wrong definition is one line that names the agent and the fault."""

from typing import Any

import pytest

from agentq import Agent, ApprovalRule, ConfigError, Hooks, Limits, RunContext, ToolError, tool
from agentq.agent import AgentSpec, make_limits
from agentq.hooks import EndRun


@tool
def search(query: str) -> str:
    return query


def refund(order_id: str, amount: float) -> str:
    return f"{order_id}: {amount}"


class Watch(Hooks):
    def before_model(self, ctx: RunContext) -> None: ...


class Facts:
    def recall(self, ctx: RunContext, text: str) -> list[str]:
        return []


def make(**changes: Any) -> AgentSpec:
    name = changes.pop("name", "test")
    return AgentSpec(name, **({"model": "openai:gpt-5.2"} | changes))


def test_a_definition_is_kept() -> None:
    spec = make(
        fallback=["anthropic:x"],
        tools=[search, refund],
        approve={"refund"},
        output=dict[str, int],
        limits={"model_calls": 3},
        hooks=(hook for hook in [Watch()]),
        memory=Facts(),
        model_settings={"temperature": 0},
        on_tool_exception=str,
    )
    assert spec.models == ("openai:gpt-5.2", "anthropic:x")
    assert list(spec.tools) == ["search", "refund"]
    assert spec.approve == {"refund": ApprovalRule()}
    assert spec.limits == Limits(model_calls=3)
    assert len(spec.hooks) == 1
    assert spec.has_recall


def test_names_to_approve_may_come_from_a_generator() -> None:
    assert make(tools=[refund], approve=(name for name in ["refund"])).approve == {"refund": ApprovalRule()}


def test_an_agent_with_nothing_to_recall_says_so() -> None:
    assert not make(hooks=[Hooks()]).has_recall
    assert not make(hooks=[Watch()]).has_recall
    assert make(memory=Facts()).has_recall


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"modell": "openai:x"}, "there is no argument 'modell'; did you mean 'model'?"),
        ({"zzz": 1}, "there is no argument 'zzz'"),
        ({"name": "風林"}, "agent '風林'"),
        ({"name": "my agent"}, "agent 'my agent'"),
        ({"name": None}, "agent None"),
        ({"fallback": "anthropic:x"}, "fallback is a list, such as ['anthropic:x']"),
        ({"tools": search}, "tools is a list"),
        ({"tools": "search"}, "tools is a list, such as ['search']"),
        ({"tools": ["search"]}, "a tool is made of a function, not of 'search'"),
        ({"tools": [search, search]}, "'search' is there twice"),
        ({"tools": [tool(name="final_answer")(refund)]}, "'final_answer' is kept"),
        ({"tools": [refund], "approve": "refund"}, "approve is a list, such as ['refund']"),
        ({"tools": [refund], "approve": ["refnd"]}, "approve names 'refnd'"),
        ({"tools": [search], "approve": [search]}, "approve holds names of tools"),
        ({"approve": ["refund"]}, "not one of its tools: none"),
        ({"output": "Ticket"}, "output='Ticket' has no JSON schema"),
        ({"limits": {"model_call": 3}}, "unknown limit 'model_call'; did you mean 'model_calls'?"),
        ({"limits": {"zzz": 3}}, "there are model_calls, tool_calls, tokens, usd, run_secs, tool_timeout_secs"),
        ({"limits": {5: 3}}, "unknown limit 5"),
        ({"limits": {"model_calls": 0, "tool_calls": -1}}, "limit model_calls: "),
        ({"limits": {"model_calls": None}}, "limit model_calls: "),
        ({"limits": {"tool_timeout_secs": float("inf")}}, "limit tool_timeout_secs: "),
        ({"limits": 5}, "limits map names to numbers"),
        ({"on_tool_exception": "ignore"}, "on_tool_exception is 'report', 'fail'"),
        ({"hooks": Watch()}, "hooks is a list"),
        ({"hooks": [Watch]}, "write Watch()"),
        ({"hooks": [print]}, "derived from Hooks"),
        ({"hook_timeout_secs": 0}, "hook_timeout_secs is a positive number of at most 60, not 0"),
        ({"hook_timeout_secs": 61}, "hook_timeout_secs is a positive number of at most 60, not 61"),
        ({"memory": "redis"}, "memory is an object with a recall method"),
        ({"instructions": None}, "instructions is a text, not None"),
        ({"description": 5}, "description is a text"),
        ({"model_settings": {"stop": {1, 2}}}, "model_settings are not a JSON object"),
        ({"model_settings": {"temperature": float("nan")}}, "model_settings are not a JSON object"),
        ({"model_settings": "hot"}, "model_settings are not a JSON object"),
        ({"model_timeout_secs": 0}, "model_timeout_secs is a positive number"),
        ({"model_timeout_secs": "60"}, "model_timeout_secs is a positive number"),
    ],
)
def test_every_wrong_definition_is_one_clear_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as made:
        make(**changes)
    text = str(made.value)
    assert says in text
    assert "\n" not in text
    assert "'test'" in text or "name" in changes or "a tool is made" in text


@pytest.mark.parametrize("model", ["gpt-5.2", "nobody:x", "", ":", 5, None])
def test_a_model_nobody_provides_is_refused(model: Any) -> None:
    with pytest.raises(ConfigError):
        Agent("test", model=model)
    with pytest.raises(ConfigError):
        Agent("test", model="openai:gpt-5.2", fallback=[model])


def test_a_model_must_be_given() -> None:
    with pytest.raises(ConfigError, match="agent 'test': missing a required argument: 'model'"):
        Agent("test")  # type: ignore[call-arg]


def test_changes_of_limits_keep_the_others() -> None:
    base = Limits(tool_calls=7)
    assert make_limits(base, {"model_calls": 3}, "run") == Limits(tool_calls=7, model_calls=3)
    assert make_limits(base, {"tokens": None}, "run") == base


def test_an_agent_as_a_tool_takes_an_input_and_knows_its_agent() -> None:
    spec = make(description="Knows all.")
    made = spec.as_tool()
    assert (made.name, made.description, made.agent) == ("test", "Knows all.", spec)
    assert made.schema["required"] == ["input"]
    assert make().as_tool(name="ask", description="Ask it.").name == "ask"
    with pytest.raises(ConfigError):
        spec.as_tool(name="not good")


def test_what_a_hook_ends_a_run_with_is_json() -> None:
    assert EndRun({"at": {1, 2}, "x": float("nan")}).output == {"at": [1, 2], "x": "NaN"}
    assert EndRun().output is None
    with pytest.raises(TypeError):
        EndRun(object())


def test_a_tool_error_needs_only_its_words() -> None:
    assert ToolError("no such order").message == "no such order"
