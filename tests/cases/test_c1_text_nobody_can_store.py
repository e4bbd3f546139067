"""C1: NUL, half characters, NaN and numbers without end, at every entrance: the run is saved and goes on."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel

from agentq import (
    Agent,
    ApprovalNotPendingError,
    AssistantMessage,
    ConfigError,
    EndRun,
    Handle,
    Hooks,
    RunContext,
    RunFailedError,
    RunNotFoundError,
    ToolCall,
    ToolError,
    tool,
)
from agentq.messages import Reasoning
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_strict_and_clean, results, rows
from tests.engine.drain import Drain

# The last six characters are a backslash and five more: harmless, and to be kept.
DIRTY = "a\x00b\ud800c\\u0000"
CLEAN = "a\ufffdb\ufffdc\\u0000"
ESCAPED = '"a\\u0000b\\ud800c\\\\u0000"'
HUGE = 10**5000

Entrance = Callable[[Database], str]
ENTRANCES: list[Entrance] = []


def entrance(find: Entrance) -> Entrance:
    """Brings DIRTY in at one place, and gives the text that came out where it is seen."""
    ENTRANCES.append(find)
    return find


def done(database: Database, test: Agent, text: str = "go", **options: Any) -> Handle:
    drain = Drain(database, test)
    handle = drain.enqueue(test, text, **options)
    drain.work()
    assert handle.status() == "completed"
    return handle


def returning(value: Any) -> Agent:
    @tool
    def give() -> Any:
        """Give it."""
        if isinstance(value, Exception):
            raise value
        return value

    return Agent("test", model=Scripted([[Call("give")], "done"]), tools=[give])


def seen(about: Callable[[ModelRequest], str], **definition: Any) -> tuple[Agent, list[str]]:
    """An agent whose model notes something of the request it gets."""
    found: list[str] = []

    def reply(request: ModelRequest) -> str:
        found.append(about(request))
        return "done"

    return Agent("test", model=Scripted([reply]), **definition), found


# ---------------------------------------------------------------------------------------------- what a producer gives


@entrance
def prompt(database: Database) -> str:
    return str(done(database, Agent("test", model=Scripted(["done"])), DIRTY).messages()[0].text)  # type: ignore[union-attr]


@entrance
def tags(database: Database) -> str:
    handle = done(database, Agent("test", model=Scripted(["done"])), tags={DIRTY: DIRTY})
    assert [run.id for run in handle.client.runs(tags={DIRTY: DIRTY})] == [handle.id]
    return "".join(f"{key}{value}" for key, value in handle.run().tags.items())


@entrance
def context(database: Database) -> str:
    found: list[str] = []

    @tool
    def look(ctx: RunContext) -> None:
        """Look."""
        found.append(repr(ctx.context).replace("\\\\", "\\"))

    test = Agent("test", model=Scripted([[Call("look")], "done"]), tools=[look])
    done(database, test, context={DIRTY: [{"deep": (DIRTY, {DIRTY})}]})
    return found[0]


@entrance
def thread_name(database: Database) -> str:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    handle = drain.enqueue(test, thread=DIRTY)
    drain.work()
    assert len(drain.client.history(DIRTY)) == 2
    return str(handle.run().thread_id)


@entrance
def idempotency_key(database: Database) -> str:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    assert drain.enqueue(test, idempotency_key=DIRTY).id == drain.enqueue(test, idempotency_key=DIRTY).id
    return str(rows(database, "select idempotency_key from agentq.runs")[0][0])


# ---------------------------------------------------------------------------------------------- what a definition holds


@entrance
def instructions(database: Database) -> str:
    test, found = seen(lambda request: request.instructions, instructions=DIRTY)
    done(database, test)
    return found[0]


@entrance
def model_settings(database: Database) -> str:
    test, found = seen(lambda request: str(request.settings["stop"][0]), model_settings={"stop": [DIRTY]})
    done(database, test)
    return found[0]


@entrance
def descriptions(database: Database) -> str:
    @tool(description=DIRTY)
    def told() -> None: ...

    helper = Agent("helper", model=Scripted(["x"]), description=DIRTY)
    test, found = seen(lambda request: "".join(t.description for t in request.tools), tools=[told, helper.as_tool()])
    done(database, test)
    return found[0]


# ---------------------------------------------------------------------------------------------- what user code gives


@entrance
def result_text(database: Database) -> str:
    return results(done(database, returning(DIRTY)))[0].text


@entrance
def result_at_any_depth_and_in_keys(database: Database) -> str:
    (result,) = results(
        done(database, returning({DIRTY: [{"b": DIRTY.encode("utf-8", "surrogatepass"), "d": {DIRTY}}]}))
    )
    return result.text.replace("\\\\", "\\")


@entrance
def tool_error(database: Database) -> str:
    return results(done(database, returning(ToolError(DIRTY))))[0].text


@entrance
def exception_text(database: Database) -> str:
    return results(done(database, returning(ValueError(DIRTY))))[0].text


@entrance
def text_for_an_exception(database: Database) -> str:
    @tool
    def fail() -> None:
        """Fail."""
        raise ValueError

    test = Agent("test", model=Scripted([[Call("fail")], "done"]), tools=[fail], on_tool_exception=lambda _: DIRTY)
    return results(done(database, test))[0].text


@entrance
def validator_error(database: Database) -> str:
    def check(value: int) -> int:
        raise RuntimeError(DIRTY)

    @tool
    def checked(n: Annotated[int, AfterValidator(check)]) -> None:
        """Check."""

    test = Agent("test", model=Scripted([[Call("checked", {"n": 1})], "done"]), tools=[checked])
    return results(done(database, test))[0].text


@entrance
def fatal_tool_error(database: Database) -> str:
    @tool
    def fail() -> None:
        """Fail."""
        raise ValueError(DIRTY)

    test = Agent("test", model=Scripted([[Call("fail")]]), tools=[fail], on_tool_exception="fail")
    drain = Drain(database, test)
    with pytest.raises(RunFailedError) as caught:
        drain.run(test)
    return caught.value.message


@entrance
def hook_output(database: Database) -> str:
    class Ends(Hooks):
        def before_model(self, ctx: RunContext) -> None:
            raise EndRun({DIRTY: [DIRTY]})

    output = done(database, Agent("test", model=Scripted([]), hooks=[Ends()])).result().output
    return "".join([*output, *output[CLEAN]])


@entrance
def memory_facts(database: Database) -> str:
    class Facts:
        def recall(self, ctx: RunContext, text: str) -> list[str]:
            return [DIRTY]

    test, found = seen(lambda request: request.instructions, memory=Facts())
    done(database, test)
    return found[0]


# ---------------------------------------------------------------------------------------------- what a model gives


@entrance
def model_text(database: Database) -> str:
    return str(done(database, Agent("test", model=Scripted([DIRTY]))).result().text)


@entrance
def names_and_ids_of_calls(database: Database) -> str:
    reply = AssistantMessage(calls=(ToolCall(id=DIRTY, name=DIRTY, arguments=DIRTY),))
    (result,) = results(done(database, Agent("test", model=Scripted([reply, "done"]))))
    assert result.code == "unknown_tool"
    return result.call_id + result.name


@entrance
def call_arguments(database: Database) -> str:
    found: list[str] = []

    @tool
    def take(**given: Any) -> None:
        """Take."""
        found.extend([*given, *given.values()])

    asked = Call("take", f"{{{ESCAPED}: {ESCAPED}}}")
    done(database, Agent("test", model=Scripted([[asked], "done"]), tools=[take]))
    return "".join(found)


@entrance
def input_of_a_sub_agent(database: Database) -> str:
    helper, found = seen(lambda request: request.messages[-1].text)  # type: ignore[union-attr]
    asked = Call("ask", f'{{"input": {ESCAPED}}}')
    boss = Agent("boss", model=Scripted([[asked], "done"]), tools=[helper.as_tool(name="ask")])
    drain = Drain(database, boss, helper)
    drain.run(boss)
    return found[0]


@entrance
def answer_of_a_sub_agent(database: Database) -> str:
    helper = Agent("helper", model=Scripted([DIRTY]))
    boss = Agent("boss", model=Scripted([[Call("helper", {"input": "x"})], "done"]), tools=[helper.as_tool()])
    drain = Drain(database, boss, helper)
    handle = drain.enqueue(boss)
    drain.work()
    return results(handle)[0].text


@entrance
def structured_output(database: Database) -> str:
    class Answer(BaseModel):
        value: dict[str, str]

    text = f'{{"value": {{{ESCAPED}: {ESCAPED}}}}}'
    value = done(database, Agent("test", model=Scripted([text]), output=Answer)).result().output.value
    return "".join([*value, *value.values()])


@entrance
def fault_of_an_adapter(database: Database) -> str:

    class Odd(Exception):
        def __str__(self) -> str:
            return DIRTY

    def reply(request: ModelRequest) -> str:
        raise Odd

    drain = Drain(database, test := Agent("test", model=Scripted([reply])))
    handle = drain.enqueue(test)
    while not handle.run().is_terminal:
        drain.work()
        drain.age(70)
        drain.sweep()
    error = handle.run().error
    return error.message if error else ""


# ---------------------------------------------------------------------------------------------- what a person gives


def waiting(database: Database) -> tuple[Drain, Handle, str]:
    @tool
    def act() -> str:
        """Act."""
        return "did"

    test = Agent("test", model=Scripted([[Call("act")], "done"]), tools=[act], approve=["act"])
    drain = Drain(database, test)
    handle = drain.enqueue(test)
    drain.work()
    return drain, handle, handle.result().approvals[0].call_id


@entrance
def name_of_who_approves(database: Database) -> str:
    drain, handle, call_id = waiting(database)
    handle.approve(call_id, by=DIRTY)
    drain.work()
    assert handle.result().text == "done"
    return str(drain.client.approvals(run_id=handle.id, status=None)[0].decided_by)


@entrance
def reason_and_name_of_who_rejects(database: Database) -> str:
    drain, handle, call_id = waiting(database)
    handle.reject(call_id, reason=DIRTY, by=DIRTY)
    drain.work()
    (approval,) = drain.client.approvals(run_id=handle.id, status=None)
    assert CLEAN in results(handle)[0].text
    return f"{approval.reason}{approval.decided_by}"


@pytest.mark.parametrize("find", ENTRANCES, ids=lambda find: find.__name__)
def test_text_that_nobody_can_store_is_cleaned_where_it_enters(
    database: Database, find: Entrance, caplog: pytest.LogCaptureFixture
) -> None:
    # The runner's processes cannot hand over a log with half a character in it.
    caplog.set_level("CRITICAL", logger="agentq")
    found = find(database)
    assert CLEAN in found
    assert not set(found) & {"\x00", "\ud800"}
    assert_strict_and_clean(database)


def test_a_signed_block_goes_back_as_it_came_as_far_as_it_can_be_stored(database: Database) -> None:
    blocks = tuple(Reasoning(provider="p", model="m", data={"signature": text}) for text in ("S+/=\x00\\u0000", DIRTY))
    reply = AssistantMessage(text="done", reasoning=blocks)
    handle = done(database, Agent("test", model=Scripted([reply])))
    kept = [block.data for block in handle.messages()[-1].reasoning]  # type: ignore[union-attr]
    assert kept == [{"signature": "S+/=\x00\\u0000"}, {"signature": "a\x00b\ufffdc\\u0000"}]


# ---------------------------------------------------------------------------------------------- numbers


def test_what_a_tool_or_a_hook_gives_and_is_no_number_in_json_is_shown_by_its_name_at_any_depth(
    database: Database,
) -> None:
    class Score(BaseModel):
        x: float

    value = {"m": Score(x=float("nan")), "l": [float("inf"), {"d": (-float("inf"),)}]}

    class Ends(Hooks):
        def after_tool(self, ctx: RunContext, result: Any) -> None:
            raise EndRun([value])

    shown = {"m": {"x": "NaN"}, "l": ["Infinity", {"d": ["-Infinity"]}]}
    test = returning(value)
    test.hooks = (Ends(),)
    handle = done(database, test)
    assert results(handle)[0].text == '{"m": {"x": "NaN"}, "l": ["Infinity", {"d": ["-Infinity"]}]}'
    assert handle.result().output == [shown]
    assert_strict_and_clean(database)


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5000], ids=lambda number: number[:9]
)
def test_a_model_that_sends_what_is_no_number_is_told_so(database: Database, number: str) -> None:
    ran: list[Any] = []

    @tool
    def take(x: Any) -> None:
        """Take."""
        ran.append(x)

    asked = [Call("take", f'{{"x": [{number}]}}'), Call("final_answer", f'{{"value": [{number}]}}')]
    test = Agent("test", model=Scripted([asked, '{"value": [1]}']), tools=[take], output=list[Any])
    handle = done(database, test)
    assert [result.code for result in results(handle)] == ["invalid_arguments", "invalid_arguments"]
    assert (handle.result().output, ran) == ([1], [])
    assert_strict_and_clean(database)


@pytest.mark.parametrize(
    "options",
    [
        *({"limits": {"tokens": number}} for number in (float("nan"), float("inf"), HUGE)),
        *({"limits": {"tool_timeout_secs": number}} for number in (float("nan"), float("inf"), 1e300)),
        {"limits": {"model_calls": HUGE}},
        {"limits": {"tool_calls": HUGE}},
        {"limits": {DIRTY: 1}},
        *({"context": {"n": [number]}} for number in (float("nan"), float("inf"), HUGE)),
    ],
    ids=lambda options: f"{next(iter(options))}",
)
def test_numbers_that_nobody_could_read_back_are_refused_before_anything_is_written(
    database: Database, options: dict[str, Any]
) -> None:
    drain = Drain(database, test := Agent("test", model=Scripted(["done"])))
    with pytest.raises(ConfigError):
        drain.enqueue(test, **options)
    assert drain.client.runs() == []
    if "limits" in options:
        with pytest.raises(ConfigError):
            Agent("test", model=Scripted([]), **options)


@pytest.mark.parametrize("number", [float("nan"), -float("inf"), HUGE], ids=["nan", "inf", "huge"])
def test_a_hook_that_changes_an_argument_to_no_number_has_the_call_refused(database: Database, number: Any) -> None:
    class Changes(Hooks):
        def before_tool(self, ctx: RunContext, call: Any) -> dict[str, Any]:
            return {"x": [number]}

    ran: list[Any] = []

    @tool
    def take(x: Any) -> None:
        """Take."""
        ran.append(x)

    handle = done(
        database, Agent("test", model=Scripted([Call("take", {"x": 1}), "bye"]), tools=[take], hooks=[Changes()])
    )
    assert ([result.code for result in results(handle)], ran) == (["invalid_arguments"], [])


def test_a_number_that_nobody_could_read_back_is_a_fault_of_the_tool_or_hook_that_gave_it(database: Database) -> None:
    class Ends(Hooks):
        def before_model(self, ctx: RunContext) -> None:
            raise EndRun({"n": HUGE})

    test = returning({"n": HUGE})
    test.hooks = (Ends(),)
    handle = done(database, test)
    assert [result.code for result in results(handle)] == ["tool_failed"]
    assert handle.result().text == "done"
    assert [event.data["faults"] for event in handle.events(follow=False) if "faults" in event.data]


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), 1e300])
def test_a_time_limit_that_no_clock_knows_is_refused_where_it_is_written(timeout: float) -> None:
    with pytest.raises(ConfigError, match="timeout"):

        @tool(timeout=timeout)
        def slow() -> None:
            """Take long."""

    with pytest.raises(ConfigError, match="model_timeout_secs"):
        Agent("test", model=Scripted([]), model_timeout_secs=timeout)


def test_looking_for_what_cannot_be_stored_finds_nothing(database: Database) -> None:
    drain, handle, _ = waiting(database)
    client = drain.client
    assert client.runs(agent=DIRTY) == client.runs(before=DIRTY) == client.runs(tags={DIRTY: DIRTY}) == []
    assert client.approvals(run_id=DIRTY) == []
    assert client.history(DIRTY) == ()
    for ask in (client.handle(DIRTY).status, client.handle(DIRTY).run, client.handle(DIRTY).cancel):
        with pytest.raises(RunNotFoundError):
            ask()
    with pytest.raises(ApprovalNotPendingError, match="has no call"):
        handle.approve(DIRTY)
    with pytest.raises(ConfigError):
        client.enqueue(DIRTY, "go", allow_unknown=True)
