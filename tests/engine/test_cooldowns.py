"""Models that refuse calls: all runs of all processes leave them in peace, then come back little by little."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from agentq import Agent, Handle, RunFailedError
from agentq.providers.openai_chat import OpenAIChat
from agentq.providers.scripted import Fault, Scripted
from agentq.storage import cooldowns
from agentq.storage.database import Database
from tests.engine.counting import counted
from tests.engine.drain import Died, Drain
from tests.providers.fake_server import Answer, Asked, FakeServer, response, serve

KEY = "sk-secret-0123456789"
ANSWER = {"choices": [{"message": {"content": "done"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 9}}
LIMITED = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}


class Limited:
    """A server that refuses the calls for which ``refuses`` is true; it is told how many came before."""

    def __init__(self, refuses: Callable[[int], bool], status: int = 429, **headers: str) -> None:
        self._refuses = refuses
        self._refusal = response(LIMITED, status, **headers)
        self.calls = self.refused = 0

    def __call__(self, asked: Asked) -> Answer:
        number, self.calls = self.calls, self.calls + 1
        if self._refuses(number):
            self.refused += 1
            return self._refusal
        return response(ANSWER)


@contextmanager
def limited(refuses: Callable[[int], bool], status: int = 429, **headers: str) -> Iterator[tuple[Limited, FakeServer]]:
    limits = Limited(refuses, status, **headers)
    with serve(limits) as server:
        yield limits, server


def model(server: FakeServer, name: str = "m", *, key: str = KEY) -> OpenAIChat:
    return OpenAIChat("openai", base_url=server.url, api_key=key, model=name)


def let_time_pass(drain: Drain, handles: list[Handle], *, secs: float = 1.0, at_most: int = 400) -> None:
    """Until all have ended."""
    for _ in range(at_most):
        drain.work()
        if all(handle.run().is_terminal for handle in handles):
            return
        drain.age(secs)
        drain.sweep()
    raise AssertionError([handle.run().status for handle in handles])


def test_one_refused_call_stands_for_all_runs_and_they_come_back_one_by_one(database: Database) -> None:
    with limited(lambda number: number == 0, retry_after="30") as (limits, server):
        drain = Drain(database, agent := Agent("test", model=model(server)))
        handles = [drain.enqueue(agent) for _ in range(20)]
        drain.work()
        assert (limits.calls, limits.refused) == (1, 1)
        runs = [handle.run() for handle in handles]
        now = min(run.updated_at for run in runs)
        waits = sorted((run.due_at - now).total_seconds() for run in runs if run.due_at)
        assert len(waits) == 20
        assert waits[0] >= 30
        # A few a second at first, more and more later on, and no two together.
        gaps = [later - earlier for earlier, later in pairwise(waits)]
        assert min(gaps) > 0
        assert waits[-1] - waits[0] > 5
        assert sum(gaps[:10]) > sum(gaps[-9:])
        let_time_pass(drain, handles)
    assert (limits.calls, limits.refused) == (21, 1)
    assert {handle.run().status for handle in handles} == {"completed"}


def test_a_model_that_is_refused_again_is_called_again_by_a_few_only(database: Database) -> None:
    # Five calls come through, and then one does not.
    with limited(lambda number: number % 6 == 0, retry_after="2") as (limits, server):
        drain = Drain(database, agent := Agent("test", model=model(server)))
        handles = [drain.enqueue(agent) for _ in range(25)]
        let_time_pass(drain, handles, secs=0.5)
    assert {handle.run().status for handle in handles} == {"completed"}
    # One in six, and none for each run that waits.
    assert limits.calls == 25 + limits.refused
    assert limits.refused == 5


def test_a_long_time_of_refusals_costs_few_calls_and_few_runs(database: Database) -> None:
    with limited(lambda number: number < 7, retry_after="1") as (limits, server):
        drain = Drain(database, agent := Agent("test", model=model(server)))
        handles = [drain.enqueue(agent) for _ in range(15)]
        let_time_pass(drain, handles)
    assert limits.refused == 7
    # Three tries each, and the others have waited.
    statuses = [handle.run().status for handle in handles]
    assert statuses.count("failed") <= 2
    assert set(statuses) <= {"failed", "completed"}


def test_a_provider_that_refuses_again_and_again_is_asked_less_and_less_often(database: Database) -> None:
    drain, waits = Drain(database), []
    for _ in range(12):
        with database.autocommit() as connection:
            refusal = {"provider": "openai", "code": "provider_overloaded", "wait_secs": 1.0}
            place = cooldowns.refused(connection, "account", "m", **refusal)
        assert place.left_secs <= place.wait_secs
        waits.append(round(place.left_secs))
        drain.age(place.left_secs + 0.001)
    assert waits == [1, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]


def test_refusals_of_calls_that_were_under_way_are_one(database: Database) -> None:
    Drain(database)
    places = []
    with database.autocommit() as connection:
        for wait in (5.0, 1.0, 5.0, 9.0):
            refusal = {"provider": "openai", "code": "provider_rate_limited", "wait_secs": wait}
            places.append(cooldowns.refused(connection, "account", "m", **refusal))
        (found,) = cooldowns.live(connection)
    assert [place.epoch for place in places] == [1, 1, 1, 1]
    assert [round(place.left_secs) for place in places] == [5, 5, 5, 9]
    # Each has a turn of its own.
    turns = [place.wait_secs - place.left_secs for place in places]
    assert turns == sorted(turns)
    assert (found.refused, found.waiting) == (4, 4)


def test_who_has_another_key_address_or_model_does_not_wait(database: Database) -> None:
    with (
        limited(lambda number: number == 0, retry_after="60") as (limits, server),
        limited(lambda _: False) as (free, other),
    ):
        agents = [
            Agent("limited", model=model(server)),
            Agent("other_key", model=model(server, key="sk-another-key")),
            Agent("other_model", model=model(server, "n")),
            Agent("other_address", model=model(other)),
            Agent("same", model=model(server)),
        ]
        drain = Drain(database, *agents)
        ended = [drain.enqueue(agent) for agent in agents]
        drain.work()
    assert [handle.run().status for handle in ended] == ["running", "completed", "completed", "completed", "running"]
    assert (limits.calls, free.calls) == (3, 1)


def test_no_key_is_stored_or_told(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    with limited(lambda number: number == 0, retry_after="60") as (_, server):
        drain = Drain(database, agent := Agent("test", model=model(server)))
        first, second = drain.enqueue(agent), drain.enqueue(agent)
        drain.work()
        with database.autocommit() as connection:
            (row,) = connection.execute("SELECT c.* FROM agentq.cooldowns c").all()
            (live,) = cooldowns.live(connection)
    assert (live.provider, live.model, live.code, live.refused) == ("openai", "m", "provider_rate_limited", 1)
    seen = repr((row, live, first.why(), second.why(), [*second.events(follow=False)], caplog.text))
    assert "secret" not in seen
    assert server.url not in seen
    assert len(live.account) == 12


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_long_wait_sends_all_to_a_fallback_that_is_free_without_another_call(database: Database, status: int) -> None:
    with (
        limited(lambda _: True, status, retry_after="60") as (busy, server),
        limited(lambda _: False) as (free, other),
    ):
        drain = Drain(database, agent := Agent("test", model=model(server), fallback=[model(other, "spare")]))
        handles = [drain.enqueue(agent) for _ in range(10)]
        drain.work()
    assert (busy.calls, free.calls) == (1, 10)
    for handle in handles:
        (reply,) = [message for message in handle.messages() if message.role == "assistant"]
        assert reply.model == "spare"
    # The first one was refused; the others say what they left out, and why.
    (step,) = [event.data for event in handles[1].events(follow=False) if event.type == "step"]
    (skipped,) = step["skipped"]
    assert (step["model"], skipped["model"], skipped["error"][:8]) == ("spare", "m", "provider")
    assert 10 < skipped["wait_secs"] <= 66


def test_a_short_wait_is_waited_for_also_with_a_fallback(database: Database) -> None:
    with (
        limited(lambda number: number == 0, retry_after="2") as (busy, server),
        limited(lambda _: False) as (free, other),
    ):
        drain = Drain(database, agent := Agent("test", model=model(server), fallback=[model(other)]))
        handles = [drain.enqueue(agent) for _ in range(3)]
        let_time_pass(drain, handles)
    assert (busy.calls, free.calls) == (4, 0)


def test_a_wait_beyond_all_bounds_ends_the_others_without_a_call_too(database: Database) -> None:
    with limited(lambda _: True, retry_after="86400") as (limits, server):
        drain = Drain(database, agent := Agent("test", model=model(server)))
        handles = [drain.enqueue(agent) for _ in range(5)]
        drain.work()
        assert limits.calls == 1
        for handle in handles:
            with pytest.raises(RunFailedError) as caught:
                handle.result()
            assert caught.value.code == "provider_rate_limited"
        # Not for as long as the provider says: somebody asks again after a quarter of an hour.
        drain.age(901)
        drain.enqueue(agent)
        drain.work()
    assert limits.calls == 2


def test_a_single_run_has_its_three_tries_and_no_more(database: Database) -> None:
    with limited(lambda _: True, retry_after="2") as (limits, server):
        drain = Drain(database, agent := Agent("test", model=model(server)))
        handle = drain.enqueue(agent)
        let_time_pass(drain, [handle])
    assert limits.calls == 3
    with pytest.raises(RunFailedError, match="slow down"):
        handle.result()
    steps = [event.data for event in handle.events(follow=False) if event.type == "step" and "retry" in event.data]
    assert [(step["provider"], step["model"], step["error"], step["retry"]["try"]) for step in steps] == [
        ("openai", "m", "provider_rate_limited", number) for number in (1, 2, 3)
    ]
    assert [step["retry"].get("wait_secs", 0) >= 2 for step in steps] == [True, True, False]


def test_a_cool_down_outlives_the_process_that_was_refused(database: Database) -> None:
    def die(point: str, phase: str) -> None:
        if (point, phase) == ("effect", "model"):
            raise Died

    with limited(lambda number: number == 0, retry_after="30") as (limits, server):
        agent = Agent("test", model=model(server))
        dying = Drain(database, agent, probe=die)
        first = dying.enqueue(agent)
        with pytest.raises(Died):
            dying.work()
        drain = Drain(database, agent)
        second = drain.enqueue(agent)
        drain.work()
        assert limits.calls == 1
        let_time_pass(drain, [first, second])
    assert (limits.calls, limits.refused) == (3, 1)


def test_a_cool_down_that_is_over_is_forgotten_and_costs_nothing(database: Database) -> None:
    with limited(lambda number: number == 0, retry_after="2") as (_, server):
        drain = Drain(database, agent := Agent("test", model=model(server)))
        let_time_pass(drain, [drain.enqueue(agent)])
        drain.age(120)
        drain.enqueue(agent)
        with counted(database) as counts:
            drain.work()
        assert dict(counts) == {"claims": 1, "reads": 1, "writes": 1, "commits": 1}
        with database.autocommit() as connection:
            assert cooldowns.live(connection) == []
            cooldowns.purge(connection)
            assert connection.execute("SELECT count(*) FROM agentq.cooldowns").scalar() == 0


def test_a_run_says_why_it_waits_and_that_it_was_not_called(database: Database) -> None:
    with limited(lambda number: number == 0, retry_after="30") as (_, server):
        drain = Drain(database, agent := Agent("test", model=model(server)))
        drain.enqueue(agent)
        handle = drain.enqueue(agent)
        drain.work()
    (wait,) = [wait for wait in handle.why().waiting_for if wait.kind == "time"]
    assert "openai:m refuses calls (provider_rate_limited)" in wait.what
    (step,) = [event.data for event in handle.events(follow=False) if event.type == "step"]
    assert step["cooling"]["code"] == "provider_rate_limited"
    assert step["cooling"]["wait_secs"] > 29
    assert "error" not in step


def test_scripts_of_one_account_wait_for_each_other_and_others_do_not(database: Database) -> None:
    def agent(name: str, fault: bool, account: str | None) -> Agent:
        steps: list[Any] = [Fault("rate_limited", retry_after=60), "done"] if fault else ["done"]
        return Agent(name, model=Scripted(steps, account=account))

    agents = [agent("a", True, "one"), agent("b", False, "one"), agent("c", False, "two"), agent("d", False, None)]
    drain = Drain(database, *agents)
    handles = [drain.enqueue(each) for each in agents]
    drain.work()
    assert [handle.run().status for handle in handles] == ["running", "running", "completed", "completed"]
