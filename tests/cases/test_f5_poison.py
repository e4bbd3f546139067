"""F5: a call that kills its worker each time is given up after a bounded number of tries; its siblings are kept."""

import pytest

from agentq import Agent, RunContext, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.cases.stored import assert_over, codes
from tests.engine.drain import Died, Drain
from tests.engine.test_crashes import work_through
from tests.workers.fleet import Fleet


@pytest.mark.parametrize("idempotent", [True, False], ids=["safe", "unsafe"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with siblings"])
@pytest.mark.parametrize("deaths", [1, 2, 3, 99])
def test_a_deadly_call_is_tried_three_times_at_most_and_its_siblings_once(
    database: Database, deaths: int, alone: bool, idempotent: bool
) -> None:
    ran: list[str] = []

    @tool(idempotent=idempotent)
    def deadly(ctx: RunContext) -> str:
        """Kill the process."""
        ran.append("deadly")
        if ran.count("deadly") <= deaths:
            raise Died
        return "survived"

    @tool
    def good(name: str) -> str:
        """Work."""
        ran.append(name)
        return name

    siblings = [] if alone else ["one", "two"]
    good_calls = [Call("good", {"name": name}) for name in siblings]
    asked = [*good_calls[:1], Call("deadly"), *good_calls[1:]]
    drain = Drain(database, test := Agent("test", model=Scripted([asked, "done"]), tools=[deadly, good]))
    handle = drain.enqueue(test)
    expected = min(deaths, 3) if idempotent else 1
    assert work_through(drain, handle) == expected
    code = "interrupted" if not idempotent else "crashed" if deaths >= 3 else None
    assert codes(handle) == [*[None] * len(siblings[:1]), code, *[None] * len(siblings[1:])]
    assert handle.result().text == "done"
    assert [name for name in ran if name != "deadly"] == siblings
    assert ran.count("deadly") == (min(deaths + 1, 3) if idempotent else 1)
    assert_over(database, handle)


@pytest.mark.crash
def test_with_real_workers_the_siblings_run_once_and_the_pool_heals(workers: Fleet) -> None:
    workers.both(concurrency=2)
    client = workers.client
    for handle, code in [(client.enqueue("poison", "go"), "crashed"), (client.enqueue("poison_twice", "go"), None)]:
        assert handle.wait(100).text == "done"
        assert codes(handle) == [None, code, None]
        keys = [call["key"] for call in workers.calls("deadly")]
        assert keys.count(f"{handle.id}:1:1") == 3
        assert_over(workers.database, handle)
    assert len(workers.calls("deadly")) == 6
    assert sorted(call["name"] for call in workers.calls("note")) == ["one", "one", "two", "two"]
    # As many at once as the pool has processes.
    after = [client.enqueue("quick", "go") for _ in range(4)]
    assert [each.wait(60).text for each in after] == ["done"] * 4
