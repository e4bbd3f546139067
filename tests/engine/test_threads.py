"""Conversations: cut back, copied, deleted, and a run that failed taken up again."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from threading import Event, Thread
from typing import Any

import psycopg
import pytest

from agentq import (
    Agent,
    AssistantMessage,
    Client,
    ConfigError,
    Deferred,
    LimitExceededError,
    Message,
    RunFailedError,
    RunFinishedError,
    RunNotFinishedError,
    RunNotFoundError,
    ThreadBusyError,
    ThreadNotFoundError,
    ToolMessage,
    UserMessage,
    tool,
)
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Fault, Scripted
from agentq.storage import threads
from agentq.storage.database import Database
from tests.engine.drain import Drain
from tests.engine.mishaps import ObservedDatabase
from tests.waiting import eventually


class Shop:
    """A model that calls twice in each message's first turn, then answers; and what the tool has really done."""

    def __init__(self, *, approve: bool = False) -> None:
        self.sold: list[int] = []
        self.seen: list[tuple[Message, ...]] = []

        @tool
        def sell(n: int) -> str:
            """Sell something."""
            self.sold.append(n)
            return f"sold {n}"

        self.agent = Agent(
            "shop", model=Scripted([self._answer] * 20), tools=[sell], approve=["sell"] if approve else []
        )

    def _answer(self, request: ModelRequest) -> Any:
        self.seen.append(request.messages)
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            return "done"
        number = len(self.seen)
        return [Call("sell", {"n": number}, id=f"c{number}"), Call("sell", {"n": -number}, id=f"d{number}")]


def said(*messages: Message) -> list[str]:
    """``u`` for the user, ``a2`` for a reply with two calls, ``t`` for a result."""
    kinds: dict[type, Callable[[Any], str]] = {
        UserMessage: lambda message: "u",
        AssistantMessage: lambda message: f"a{len(message.calls)}",
        ToolMessage: lambda message: "t",
    }
    return [kinds[type(message)](message) for message in messages]


TURN = ["u", "a2", "t", "t", "a0"]


def talked(database: Database, *, messages: int = 2, **options: Any) -> tuple[Drain, Shop]:
    drain = Drain(database, (shop := Shop(**options)).agent)
    for _ in range(messages):
        drain.run(shop.agent, thread="t")
    return drain, shop


# ---------------------------------------------------------------------------------------------- rewind


@pytest.mark.parametrize("to", range(11))
def test_a_thread_is_cut_at_a_legal_border_whichever_message_is_named(database: Database, to: int) -> None:
    drain, shop = talked(database)
    whole = drain.client.history("t")
    assert said(*whole) == TURN * 2
    rewound = drain.client.thread("t").rewind(to)
    # Between a reply's calls and their results it moves back to before the reply.
    legal = {2: 1, 3: 1, 7: 6, 8: 6}.get(to, to)
    assert rewound.messages == legal
    assert drain.client.history("t") == whole[:legal]
    result = drain.run(shop.agent, "again", thread="t")
    assert result.text == "done"
    assert shop.seen[-2] == (*whole[:legal], UserMessage(text="again"))
    assert drain.client.history("t")[:legal] == whole[:legal]


def test_a_rewind_lists_what_the_tools_behind_the_cut_have_done(database: Database) -> None:
    drain, _ = talked(database)
    first, second = (run.id for run in reversed(drain.client.runs()))
    effects = drain.client.thread("t").rewind(0).effects
    assert [(effect.run_id, effect.call_id, effect.tool) for effect in effects] == [
        (first, "c1", "sell"),
        (first, "d1", "sell"),
        (second, "c3", "sell"),
        (second, "d3", "sell"),
    ]
    assert [effect.result.text for effect in effects if effect.result] == ["sold 1", "sold -1", "sold 3", "sold -3"]
    assert drain.client.history("t") == ()


def test_calls_that_were_not_run_are_no_effects(database: Database) -> None:
    drain = Drain(database, (shop := Shop(approve=True)).agent)
    handle = drain.enqueue(shop.agent, thread="t")
    drain.work()
    one, two = handle.approvals()
    handle.reject(one.call_id)
    handle.approve(two.call_id)
    drain.work()
    assert [effect.call_id for effect in drain.client.thread("t").rewind(1).effects] == [two.call_id]


def test_the_same_call_id_in_two_runs_of_a_thread_is_two_calls(database: Database) -> None:
    sold: list[int] = []

    @tool
    def sell(n: int) -> str:
        """Sell something."""
        sold.append(n)
        return f"sold {n}"

    calls = [Call("sell", {"n": n}, id="call_0") for n in (1, 2)]
    script = Scripted([calls[0], "done", calls[1], "done"])
    agent = Agent("shop", model=script, tools=[sell], approve={"sell": lambda ctx, arguments: arguments["n"] == 2})
    drain = Drain(database, agent)
    drain.run(agent, thread="t")
    handle = drain.enqueue(agent, thread="t")
    drain.work()
    handle.reject("call_0")
    drain.work()
    effects = drain.client.thread("t").rewind(0).effects
    assert [effect.result.text for effect in effects if effect.result] == ["sold 1"]
    assert sold == [1]


def handed_over(drain: Drain) -> Agent:
    """Its call was handed to the outside, which did not answer in time."""

    @tool
    def act() -> str:
        raise Deferred(deadline_secs=60)

    agent = Agent("test", model=Scripted([Call("act"), "done"]), tools=[act])
    drain.agents["test"] = agent
    drain.enqueue(agent, thread="t")
    drain.work()
    drain.age(61)
    drain.sweep()
    drain.work()
    return agent


def stopped_in_the_middle(drain: Drain) -> Agent:
    """It was cancelled while its async tool was running."""
    started = Event()

    @tool
    async def act() -> str:
        started.set()
        await asyncio.sleep(60)
        return "never"

    agent = Agent("test", model=Scripted([Call("act"), "done"]), tools=[act])
    drain.agents["test"] = agent
    handle = drain.enqueue(agent, thread="t")
    worker = Thread(target=drain.work)
    worker.start()
    started.wait()
    handle.cancel()
    drain.engine.services.heartbeat.renew()
    worker.join()
    return agent


def of_a_sub_agent(drain: Drain, **options: Any) -> Agent:
    act, later = tool(name="act")(lambda: "acted"), tool(name="later")(lambda: "never")
    script = Scripted([Call("act"), Call("later"), "never"])
    clerk = Agent("clerk", model=script, tools=[act, later], **options)
    boss = Agent("boss", model=Scripted([Call("clerk", {"input": "x"}), "never"]), tools=[clerk.as_tool()])
    top = Agent("top", model=Scripted([Call("boss", {"input": "x"}), "never"]), tools=[boss.as_tool()])
    drain.agents.update({agent.name: agent for agent in (clerk, boss, top)})
    drain.enqueue(top, thread="t")
    drain.work()
    return top


def of_a_sub_agent_that_waits(drain: Drain) -> Agent:
    """Two levels below, one call was run and another one waits for a person."""
    return of_a_sub_agent(drain, approve=["later"])


def of_a_sub_agent_that_is_done(drain: Drain) -> Agent:
    return of_a_sub_agent(drain)


@pytest.mark.parametrize(
    ("make", "tools"),
    [
        (handed_over, ["act"]),
        (stopped_in_the_middle, ["act"]),
        (of_a_sub_agent_that_waits, ["boss", "clerk", "act"]),
        (of_a_sub_agent_that_is_done, ["boss", "clerk", "act", "later"]),
    ],
)
def test_whatever_may_have_been_done_behind_the_cut_is_listed(
    database: Database, make: Callable[[Drain], Agent], tools: list[str]
) -> None:
    drain = Drain(database)
    make(drain)
    effects = drain.client.thread("t").rewind(0).effects
    assert [effect.tool for effect in effects] == tools
    by_id = {run.id: run.agent for run in drain.client.runs()}
    assert by_id[effects[-1].run_id] in ("test", "clerk")


@pytest.mark.parametrize("statement", range(1, 4))
def test_what_a_run_does_while_it_is_being_taken_back_is_listed_too(database: Database, statement: int) -> None:
    """The rewind is at its statements before it has the run's row: the last of these finds a run that has ended."""
    drain, shop = talked(database, messages=1)
    handle = drain.enqueue(shop.agent, thread="t")
    observed, passed = ObservedDatabase(database.url), count(0)

    def moment(what: str) -> None:
        if next(passed) == statement:
            drain.work()

    observed.moment = moment
    client = Client(settings=drain.client.settings)
    client.database = observed
    try:
        rewound = client.thread("t").rewind(5)
    finally:
        observed.dispose()
    assert handle.status() == "completed"
    assert [effect.result and effect.result.text for effect in rewound.effects] == [f"sold {n}" for n in shop.sold[2:]]
    assert len(rewound.effects) == 2
    assert said(*drain.client.history("t")) == TURN


def test_an_answer_and_what_a_person_did_in_a_tools_place_are_no_effects(database: Database) -> None:
    sell = tool(name="sell")(lambda: "sold")
    script = Scripted([Call("sell"), Call("final_answer", {"n": 1})])
    agent = Agent("shop", model=script, tools=[sell], approve=["sell"], output={"type": "object"}, output_mode="tool")
    drain = Drain(database, agent)
    handle = drain.enqueue(agent, thread="t")
    drain.work()
    handle.respond(handle.approvals()[0].call_id, "sold by hand")
    drain.work()
    assert handle.result().stop_reason == "output"
    assert drain.client.thread("t").rewind(0).effects == ()


def test_a_negative_number_takes_away_as_many_messages(database: Database) -> None:
    drain, _ = talked(database)
    assert drain.client.thread("t").rewind(-1).messages == 9
    assert drain.client.thread("t").rewind(-2).messages == 6
    with pytest.raises(ConfigError, match="thread 't': the conversation has 6 messages, so it cannot be cut at 7"):
        drain.client.thread("t").rewind(7)


def test_a_thread_may_be_cut_again_and_again(database: Database) -> None:
    drain, shop = talked(database, messages=3)
    thread = drain.client.thread("t")
    assert thread.rewind(12).messages == 11
    assert thread.rewind(6).messages == 6
    drain.run(shop.agent, "again", thread="t")
    assert said(*thread.history()) == [*TURN, "u", "u", "a2", "t", "t", "a0"]
    assert thread.rewind(5).messages == 5
    assert said(*thread.history()) == TURN


def test_a_rewind_that_drops_nothing_changes_nothing(database: Database) -> None:
    drain, shop = talked(database, messages=1)
    handle = drain.enqueue(shop.agent, thread="t")
    assert drain.client.thread("t").rewind(6).messages == 6
    drain.work()
    assert handle.result().text == "done"


@pytest.mark.parametrize("to", ["1", 1.5, True, 10**30, -(10**30)])
def test_what_is_no_place_in_a_thread_changes_nothing(database: Database, to: Any) -> None:
    drain, _ = talked(database, messages=1)
    thread, whole = drain.client.thread("t"), drain.client.history("t")
    for cut in (thread.rewind, lambda at: thread.fork("f", at=at)):
        with pytest.raises(ConfigError, match="thread 't'"):
            cut(to)
    assert (thread.history(), drain.client.history("f")) == (whole, ())


def test_a_waiting_run_behind_the_cut_is_cancelled_and_the_thread_is_free(database: Database) -> None:
    drain, shop = talked(database, messages=0, approve=True)
    handle = drain.enqueue(shop.agent, "first", thread="t")
    drain.work()
    assert handle.status() == "waiting"
    rewound = drain.client.thread("t").rewind(0)
    assert (rewound.effects, handle.status(), drain.client.approvals()) == ((), "cancelled", [])
    assert drain.client.history("t") == ()
    other = drain.enqueue(shop.agent, "second", thread="t")
    drain.work()
    assert other.status() == "waiting"
    assert shop.seen[-1] == (UserMessage(text="second"),)


def test_a_run_at_work_behind_the_cut_is_void_at_once_and_ends_with_its_step(database: Database) -> None:
    drain, shop = talked(database, messages=1)
    later: list[Any] = []

    @tool
    def stall() -> str:
        """While it runs, a person takes the message back and says something else."""
        rewound = drain.client.thread("t").rewind(5)
        later.append((rewound, drain.enqueue(shop.agent, "else", thread="t")))
        return "stalled"

    slow = Agent("slow", model=Scripted(["unused", "unused", Call("stall"), "never"]), tools=[stall])
    drain.agents["slow"] = drain.client.agents["slow"] = slow
    handle = drain.enqueue(slow, "take this back", thread="t")
    drain.work()
    ((rewound, other),) = later
    assert [(effect.tool, effect.result) for effect in rewound.effects] == [("stall", None)]
    assert handle.status() == "cancelled"
    assert other.result().text == "done"
    assert shop.seen[-1][5] == UserMessage(text="else")
    assert said(*drain.client.history("t")) == TURN * 2
    # Its own record stays as it was.
    assert said(*handle.messages()) == ["u", "a1", "t"]


def test_rewinds_and_messages_at_once_leave_one_open_run_and_a_whole_conversation(database: Database) -> None:
    # So many that ten rewinds, of three messages at most, cannot take them all.
    drain, shop = talked(database, messages=6)
    enqueued: list[Any] = []

    def say() -> None:
        with suppress(ThreadBusyError):
            enqueued.append(drain.enqueue(shop.agent, thread="t"))

    people = [Thread(target=say if n % 2 else lambda: drain.client.thread("t").rewind(-1)) for n in range(20)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    still_open = [handle for handle in enqueued if not handle.run().is_terminal]
    assert len(still_open) <= 1
    drain.work()
    assert all(handle.run().is_terminal for handle in enqueued)
    history = drain.client.history("t")
    assert drain.run(shop.agent, "last", thread="t").text == "done"
    assert shop.seen[-2] == (*history, UserMessage(text="last"))


def test_a_thread_nobody_has_heard_of_is_not_found(database: Database) -> None:
    thread = Drain(database).client.thread("nobody's")
    for ask in (lambda: thread.rewind(0), lambda: thread.fork("x"), thread.delete):
        with pytest.raises(ThreadNotFoundError, match='there is no thread "nobody\'s"'):
            ask()
    with pytest.raises(RunNotFoundError, match="has no run to retry"):
        thread.retry()
    assert thread.history() == ()


# ---------------------------------------------------------------------------------------------- fork


def test_a_fork_goes_its_own_way_from_the_message_it_was_made_at(database: Database) -> None:
    drain, shop = talked(database)
    whole = drain.client.history("t")
    fork = drain.client.thread("t").fork("f", at=8)
    assert fork.history() == whole[:6]
    drain.run(shop.agent, "elsewhere", thread="f")
    assert shop.seen[-2] == (*whole[:6], UserMessage(text="elsewhere"))
    assert drain.client.history("t") == whole
    drain.client.thread("t").delete()
    assert fork.history()[:6] == whole[:6]
    # It is a thread like any other: cut within what was copied, and forked again.
    again = fork.fork("g")
    assert again.history() == fork.history()
    assert fork.rewind(5).messages == 5
    assert [effect.run_id for effect in again.rewind(1).effects[:2]] == ["", ""]
    drain.run(shop.agent, "more", thread="f")
    assert said(*fork.history()) == TURN * 2


def test_a_fork_of_a_taken_name_or_an_empty_thread(database: Database) -> None:
    drain, shop = talked(database, messages=1)
    with pytest.raises(ConfigError, match="there is a thread 't' already"):
        drain.client.thread("t").fork("t")
    empty = drain.client.thread("t").fork("e", at=0)
    assert empty.history() == ()
    assert drain.run(shop.agent, thread="e").text == "done"


# ---------------------------------------------------------------------------------------------- delete


def test_a_deleted_thread_leaves_no_row_behind_also_of_sub_agents(database: Database) -> None:
    child = Agent(
        "child", model=Scripted([Call("act"), "did it"]), tools=[tool(name="act")(lambda: "ok")], approve=["act"]
    )
    top = Agent("top", model=Scripted([Call("child", {"input": "x"}), "done"]), tools=[child.as_tool()])
    drain = Drain(database, top, child)
    handle = drain.enqueue(top, thread="t")
    other = drain.enqueue(top)
    drain.work()
    with pytest.raises(ThreadBusyError, match="is busy with run"):
        drain.client.thread("t").delete()
    for each in (handle, other):
        each.approve(each.approvals()[0].call_id)
    drain.work()
    assert drain.client.thread("t").delete() == 2
    assert {run.id for run in drain.client.runs() if run.parent_run_id is None} == {other.id}
    for table in ("threads", "journal", "tool_calls", "approvals"):
        with database.transaction() as connection:
            left = connection.execute(f"select count(*) from agentq.{table}").scalar()
        assert left == {"threads": 0, "journal": left, "tool_calls": left, "approvals": 1}[table]
    with database.transaction() as connection:
        orphans = "select count(*) from agentq.journal where run not in (select number from agentq.runs)"
        assert connection.execute(orphans).scalar() == 0


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_a_message_for_a_thread_that_is_being_deleted_begins_a_new_one(database: Database, whose: str) -> None:
    drain, shop = talked(database)
    enqueued: list[Any] = []

    def say() -> None:
        if whose == "ours":
            enqueued.append(drain.enqueue(shop.agent, "anew", thread="t"))
            return
        with psycopg.connect(database.url) as theirs:
            enqueued.append(drain.enqueue(shop.agent, "anew", thread="t", connection=theirs))

    speaker = Thread(target=say)
    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with database.transaction() as deleting, database.autocommit() as looking:
        threads.lock(deleting, "t")
        speaker.start()
        eventually(lambda: looking.execute(waits).scalar() == 1, what="the message waits for the lock")
        threads.delete(deleting, ["t"])
    speaker.join()
    drain.sweep()
    drain.work()
    assert [handle.result().text for handle in enqueued] == ["done"]
    assert said(*drain.client.history("t")) == TURN
    assert len(drain.client.runs()) == 1


def test_a_thread_may_be_deleted_before_its_rewind_is_over(database: Database) -> None:
    drain = Drain(database)
    of_a_sub_agent_that_waits(drain)
    observed, gone = ObservedDatabase(database.url), []

    def moment(what: str) -> None:
        if what == "committed" and not gone:
            gone.append(drain.client.thread("t").delete())

    observed.moment = moment
    client = Client(settings=drain.client.settings)
    client.database = observed
    client.__dict__["dispatcher"] = drain
    try:
        rewound = client.thread("t").rewind(0)
    finally:
        observed.dispose()
    assert (rewound.messages, gone, drain.client.runs()) == (0, [3], [])


# ---------------------------------------------------------------------------------------------- retry


def failing(times: int | None = 1, **more: Any) -> Agent:
    acts = tool(name="act")(lambda: "acted")
    script = Scripted([Call("act"), Fault("quota_exceeded", times=times), "done"])
    return Agent("test", model=script, tools=[acts], **more)


@pytest.mark.parametrize("thread", [None, "t"])
def test_a_failed_run_goes_on_where_it_stood_with_the_same_counts(database: Database, thread: str | None) -> None:
    drain = Drain(database, agent := failing())
    handle = drain.enqueue(agent, thread=thread)
    drain.work()
    with pytest.raises(RunFailedError):
        handle.result()
    before = handle.run()
    if thread:
        agent.thread(thread).retry(client=drain.client)
    else:
        handle.retry()
    drain.work()
    assert handle.result().text == "done"
    after = handle.run()
    assert (after.id, after.tool_calls, after.model_calls) == (before.id, 1, before.model_calls + 1)
    assert (after.error, after.stop_reason) == (None, "final_answer")
    events = list(handle.events(follow=False))
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [event.data for event in events if event.type == "run.retried"] == [{"was": "failed"}]


def test_a_cancelled_run_goes_on_too_and_nothing_of_it_is_done_twice(database: Database) -> None:
    drain = Drain(database, (shop := Shop(approve=True)).agent)
    handle = drain.enqueue(shop.agent)
    drain.work()
    handle.cancel()
    handle.retry()
    drain.work()
    assert handle.result().text == "done"
    assert shop.sold == []
    assert [m.result.code for m in handle.messages() if isinstance(m, ToolMessage)] == ["cancelled"] * 2


def test_a_run_that_has_reached_a_limit_needs_a_higher_one(database: Database) -> None:
    agent = failing(times=0, limits={"model_calls": 1})
    drain = Drain(database, agent)
    handle = drain.enqueue(agent)
    drain.work()
    with pytest.raises(LimitExceededError):
        handle.result()
    with pytest.raises(RunFinishedError, match=r"limit of 1 model calls; give it more: retry\(limits=\{'model_calls'"):
        handle.retry()
    with pytest.raises(ConfigError, match="did you mean 'model_calls'"):
        handle.retry(limits={"model_call": 5})
    handle.retry(limits={"model_calls": 2})
    drain.work()
    assert handle.result().text == "done"
    assert handle.run().model_calls == 2


def test_a_run_is_retried_only_where_that_makes_sense(database: Database) -> None:
    drain = Drain(database, agent := failing(times=None))
    first = drain.enqueue(agent, thread="t")
    with pytest.raises(RunNotFinishedError, match="is queued"):
        first.retry()
    drain.work()
    second = drain.enqueue(agent, thread="t")
    with pytest.raises(RunFinishedError, match="is not the last of thread 't'"):
        first.retry()
    drain.work()
    drain.client.thread("t").rewind(1)
    with pytest.raises(RunFinishedError, match="is not the last of thread 't'"):
        second.retry()
    with pytest.raises(RunNotFoundError):
        drain.client.handle("run_nope").retry()
    done = drain.enqueue(fine := Agent("fine", model=Scripted(["done"])))
    drain.agents["fine"] = fine
    drain.work()
    with pytest.raises(RunFinishedError, match="is completed; say more on its thread"):
        done.retry()


def test_a_sub_agents_run_is_retried_by_its_parent_only(database: Database) -> None:
    child = Agent("child", model=Scripted([Fault("quota_exceeded", times=None), "never"]))
    top = Agent("top", model=Scripted([Call("child", {"input": "x"}), "done"]), tools=[child.as_tool()])
    drain = Drain(database, top, child)
    parent = drain.enqueue(top)
    drain.work()
    below = next(run for run in drain.client.runs() if run.agent == "child")
    with pytest.raises(RunFinishedError, match=f"has answered a call of run {parent.id}"):
        drain.client.handle(below.id).retry()


def test_a_model_is_not_left_with_the_last_word_before_it_is_asked_again(database: Database) -> None:
    seen: list[Message] = []

    def good(request: ModelRequest) -> str:
        seen.append(request.messages[-1])
        return '{"a": 1}'

    agent = Agent("test", model=Scripted(["bad", "worse", good]), output=dict[str, int])
    drain = Drain(database, agent)
    handle = drain.enqueue(agent)
    drain.work()
    with pytest.raises(RunFailedError) as caught:
        handle.result()
    assert caught.value.code == "output_invalid"
    handle.retry()
    drain.work()
    assert handle.result().output == {"a": 1}
    assert isinstance(seen[0], UserMessage)


def test_a_retry_whose_message_is_lost_is_found_by_the_sweep(database: Database) -> None:
    drain = Drain(database, agent := failing())
    handle = drain.enqueue(agent)
    drain.work()
    handle.retry()
    drain.wake_ups.clear()
    drain.age(20)
    drain.sweep()
    drain.work()
    assert handle.result().text == "done"


def test_of_two_retries_at_once_one_lets_it_go_on(database: Database) -> None:
    drain = Drain(database, agent := failing())
    handle = drain.enqueue(agent)
    drain.work()
    handle.retry()
    with pytest.raises(RunNotFinishedError, match="is running"):
        handle.retry()
    drain.work()
    assert handle.result().text == "done"
