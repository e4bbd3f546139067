"""C4: far too much of everything, at every entrance: rows and messages stay small, the run ends."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
import redis
from pydantic import AfterValidator, BaseModel

from agentq import Agent, AssistantMessage, EndRun, Handle, Hooks, RunContext, ToolCall, ToolError
from agentq.errors import ProviderError
from agentq.limits import MAX_CALLS_PER_REPLY, MAX_FACTS_CHARS, MAX_RESULT_CHARS
from agentq.producer import CeleryDispatcher, make_app
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over, results, rows
from tests.engine.drain import Drain

BIG = "x" * 1_000_000

# What a run's rows may come to, whatever goes in: the transcript alone is as long as what was said.
LONGEST_ERROR = 4_500
LONGEST_EVENT = 2_500
LONGEST_CALL = 3_500
# With its headers and the options of its chord.
LONGEST_MESSAGE = 4_000

Entrance = Callable[[Database], Handle]
ENTRANCES: list[Entrance] = []


def entrance(bring: Entrance) -> Entrance:
    """Brings BIG in at one place; the run it gives has ended."""
    ENTRANCES.append(bring)
    return bring


def through(database: Database, test: Agent, *others: Agent, **options: Any) -> Handle:
    drain = Drain(database, test, *others)
    handle = drain.enqueue(test, **options)
    while not handle.run().is_terminal:
        drain.work()
        drain.age(70)
        drain.sweep()
    return handle


def calling(function: Callable[..., Any], *, calls: int = 1, arguments: Any = None, **definition: Any) -> Agent:
    asked = [Call(function.__name__, arguments or {}) for _ in range(calls)]
    return Agent("test", model=Scripted([asked, "done", "done"]), tools=[function], **definition)


def giving(value: Any, *, calls: int = 1) -> Agent:
    def give() -> Any:
        """Give it."""
        if isinstance(value, Exception):
            raise value
        return value

    return calling(give, calls=calls)


@entrance
def text_of_a_result(database: Database) -> Handle:
    return through(database, giving(BIG))


@entrance
def list_of_a_result(database: Database) -> Handle:
    return through(database, giving([BIG, {BIG: 1}]))


@entrance
def bytes_of_a_result(database: Database) -> Handle:
    return through(database, giving(b"\xff" * 1_000_000))


@entrance
def exception_of_a_tool(database: Database) -> Handle:
    return through(database, giving(ValueError(BIG)))


@entrance
def tool_error(database: Database) -> Handle:
    return through(database, giving(ToolError(BIG, more=BIG)))


@entrance
def fatal_exception_of_a_tool(database: Database) -> Handle:
    def fail() -> None:
        """Fail."""
        raise ValueError(BIG)

    return through(database, calling(fail, on_tool_exception="fail"))


@entrance
def text_for_an_exception(database: Database) -> Handle:
    def fail() -> None:
        """Fail."""
        raise ValueError

    return through(database, calling(fail, calls=2, on_tool_exception=lambda _: BIG))


@entrance
def validator_of_a_parameter(database: Database) -> Handle:
    def check(value: int) -> int:
        raise RuntimeError(BIG)

    def checked(n: Annotated[int, AfterValidator(check)]) -> None:
        """Check."""

    return through(database, calling(checked, arguments={"n": 1}))


@entrance
def validator_of_the_output(database: Database) -> Handle:
    class Answer(BaseModel):
        n: int

        def model_post_init(self, _: Any) -> None:
            raise RuntimeError(BIG)

    return through(database, Agent("test", model=Scripted(['{"n": 1}'] * 2), output=Answer))


@entrance
def arguments_that_fit(database: Database) -> Handle:
    def take(text: str) -> int:
        """Take."""
        return len(text)

    handle = through(database, calling(take, arguments={"text": BIG}))
    assert results(handle)[0].text == "1000000"
    return handle


@entrance
def arguments_that_do_not_fit(database: Database) -> Handle:
    def take(n: int) -> None:
        """Take."""

    return through(database, calling(take, arguments={"n": BIG, BIG: 1}))


@entrance
def arguments_that_are_no_json(database: Database) -> Handle:
    def take(n: int) -> None:
        """Take."""

    return through(database, calling(take, arguments="{" + BIG))


@entrance
def names_and_ids_of_calls(database: Database) -> Handle:
    calls = tuple(ToolCall(id=BIG, name=BIG, arguments="{}") for _ in range(2))
    handle = through(database, Agent("test", model=Scripted([AssistantMessage(calls=calls), "done"])))
    assert len({result.call_id for result in results(handle)}) == 2
    return handle


@entrance
def memory_facts(database: Database) -> Handle:
    class Facts:
        def recall(self, ctx: RunContext, text: str) -> list[str]:
            return [BIG, BIG]

    return through(database, Agent("test", model=Scripted(["done"]), memory=Facts()))


@entrance
def very_many_memory_facts(database: Database) -> Handle:
    class Facts:
        def recall(self, ctx: RunContext, text: str) -> list[str]:
            return [""] * 1_000_000

    return through(database, Agent("test", model=Scripted(["done"]), memory=Facts()))


@entrance
def hook_output(database: Database) -> Handle:
    class Ends(Hooks):
        def after_tool(self, ctx: RunContext, result: Any) -> None:
            raise EndRun({"all": BIG})

    test = giving("x")
    test.hooks = (Ends(),)
    handle = through(database, test)
    # It is what the caller asked for: whole, and stored once.
    assert handle.result().output == {"all": BIG}
    return handle


@entrance
def exception_of_a_hook(database: Database) -> Handle:
    class Fails(Hooks):
        def before_tool(self, ctx: RunContext, call: ToolCall) -> None:
            raise ValueError(BIG)

    test = giving("x")
    test.hooks = (Fails(),)
    return through(database, test)


@entrance
def fault_of_a_provider(database: Database) -> Handle:
    fault = ProviderError("overloaded", BIG)
    return through(database, Agent("test", model=Scripted([fault]), fallback=[Scripted([fault])]))


@entrance
def fault_of_an_adapter(database: Database) -> Handle:
    def reply(request: ModelRequest) -> str:
        raise RuntimeError(BIG)

    return through(database, Agent("test", model=Scripted([reply])))


@entrance
def answer_of_a_sub_agent(database: Database) -> Handle:
    helper = Agent("helper", model=Scripted([BIG]))
    boss = Agent("boss", model=Scripted([[Call("helper", {"input": BIG})], "done"]), tools=[helper.as_tool()])
    return through(database, boss, helper)


@entrance
def words_of_a_person(database: Database) -> Handle:
    def act() -> None:
        """Act."""

    drain = Drain(database, test := calling(act, approve=["act"]))
    handle = drain.enqueue(test)
    drain.work()
    handle.reject(handle.result().approvals[0].call_id, reason=BIG, by=BIG)
    drain.work()
    ((longest,),) = rows(database, "select length(a::text) from agentq.approvals a")
    assert longest <= LONGEST_ERROR
    return handle


@entrance
def prompt_and_tags(database: Database) -> Handle:
    return through(database, Agent("test", model=Scripted(["done"])), text=BIG, tags={BIG: BIG})


@pytest.mark.parametrize("bring", ENTRANCES, ids=lambda bring: bring.__name__)
def test_what_is_far_too_big_leaves_bounded_rows_behind(
    database: Database, bring: Entrance, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", logger="agentq")
    handle = bring(database)
    assert_over(database, handle)
    for result in results(handle):
        assert len(result.text) <= MAX_RESULT_CHARS
    ((progress, error),) = rows(
        database, "select max(length(progress)) as progress, max(length(error)) as error from agentq.runs"
    )
    assert progress < 1_000
    assert (error or 0) <= LONGEST_ERROR
    ((event,),) = rows(database, "select max(length(data)) from agentq.events where type <> 'step.failed'")
    assert event <= LONGEST_EVENT + LONGEST_ERROR * (bring is fault_of_a_provider)
    ((call,),) = rows(database, "select coalesce(max(length(c::text)), 0) from agentq.tool_calls c")
    assert call <= LONGEST_CALL


def test_facts_that_are_too_many_are_cut_with_a_word_and_the_snapshot_stays_small(database: Database) -> None:
    shown: list[str] = []

    class Facts:
        def recall(self, ctx: RunContext, text: str) -> list[str]:
            return ["first", BIG, "never"]

    def reply(request: ModelRequest) -> str:
        shown.append(request.instructions)
        return "done"

    drain = Drain(database, test := Agent("test", model=Scripted([reply]), memory=Facts()))
    handle = drain.enqueue(test)
    drain.do(drain.wake_ups.pop(0))
    ((progress,),) = rows(database, "select length(progress) from agentq.runs")
    assert progress < MAX_FACTS_CHARS * 1.1
    drain.work()
    assert handle.result().text == "done"
    assert "- first\n- xxx" in shown[0]
    assert "[cut: 1000000 characters" in shown[0]
    assert "never" not in shown[0]
    faults = [event.data["faults"] for event in handle.events(follow=False) if "faults" in event.data]
    assert faults == [["memory: only the first 100,000 characters of its facts were taken"]]


def test_32_results_of_5_mb_and_a_next_message_on_the_thread(database: Database, redis_url: str) -> None:
    heard: list[int] = []

    def last(request: ModelRequest) -> str:
        heard.append(sum(len(m.result.text) for m in request.messages if m.role == "tool"))
        return "done"

    def give() -> str:
        """Give."""
        return "x" * 5_000_000

    calls = [Call("give") for _ in range(MAX_CALLS_PER_REPLY)]
    test = Agent("test", model=Scripted([calls, last, last]), tools=[give])
    drain = Drain(database, test)
    handle = drain.enqueue(test, thread="t")
    drain.work()
    assert handle.result().text == "done"
    for result in results(handle):
        assert len(result.text) <= MAX_RESULT_CHARS
        assert "[cut: 5000000 characters, the first 99" in result.text[-100:]
    assert_over(database, handle)
    again = drain.enqueue(test, thread="t")
    drain.work()
    assert again.result().text == "done"
    assert heard[0] == heard[1] <= MAX_CALLS_PER_REPLY * MAX_RESULT_CHARS
    messages = sent_through(redis_url, drain)
    assert len(messages) >= MAX_CALLS_PER_REPLY
    assert max(map(len, messages)) < LONGEST_MESSAGE


def sent_through(url: str, drain: Drain) -> list[bytes]:
    """The bytes that a broker is given for everything that was sent."""
    app = make_app(url, queue="sizes")
    app.conf.result_backend = "agentq_workers.chord:BarrierBackend"
    dispatcher = CeleryDispatcher(app, queue="sizes")
    for wake_up in drain.sent:
        dispatcher.send(wake_up)
    with redis.Redis.from_url(url) as client:
        return [message for name in client.keys("sizes*") for message in client.lrange(name, 0, -1)]


def test_an_argument_of_a_megabyte_is_put_before_a_person_whole(database: Database) -> None:
    taken: list[int] = []

    def take(text: str) -> None:
        """Take."""
        taken.append(len(text))

    drain = Drain(database, test := calling(take, arguments={"text": BIG}, approve=["take"]))
    handle = drain.enqueue(test)
    drain.work()
    (approval,) = handle.result().approvals
    assert len(approval.arguments) > 1_000_000
    handle.approve(approval.call_id)
    drain.work()
    assert (handle.result().text, taken) == ("done", [1_000_000])
