"""The sweep finds runs by columns that steps leave alone: never too late, and not again and again in vain."""

from typing import Any

import pytest

from agentq import Agent, tool
from agentq.providers.scripted import Call, Scripted
from agentq.storage import leases, steps
from agentq.storage.database import Database
from tests.engine.counting import observed
from tests.engine.drain import Drain
from tests.engine.test_hostile import sql

LOOKS = """
    select lease_look_at is not null as for_lease, sweep_look_at is not null as for_wake_up,
        lease_look_at = lease_until as is_exact from agentq.runs"""


@tool(inline=True)
def act(n: int) -> str:
    """Do something."""
    return f"did {n}"


@pytest.fixture
def drain(database: Database) -> Drain:
    script = Scripted([Call("act", {"n": 1}), Call("act", {"n": 2}), "done"])
    return Drain(database, Agent("test", model=script, tools=[act]))


def begun(drain: Drain) -> str:
    """A run whose first step is claimed, for a minute."""
    handle = drain.enqueue(drain.agents["test"])
    with drain.database.autocommit() as connection:
        assert steps.claim(connection, handle.id, 0, lease_secs=60, worker="other")
    return handle.id


def due(drain: Drain, **options: Any) -> list[tuple[str, bool]]:
    with drain.database.autocommit() as connection:
        return [(found.run_id, found.leased) for found in leases.due(connection, **options)]


def test_a_run_that_is_looked_at_in_vain_is_moved_to_the_end_of_its_lease(drain: Drain) -> None:
    run_id = begun(drain)
    assert sql(drain, LOOKS) == [(True, True, False)]
    drain.age(10)
    assert due(drain) == []
    assert sql(drain, LOOKS) == [(True, False, True)]
    drain.age(60)
    assert due(drain) == [(run_id, True)]


def test_an_expired_lease_is_found_at_once_whatever_was_looked_at_before(drain: Drain) -> None:
    run_id = begun(drain)
    drain.age(61)
    assert due(drain) == [(run_id, True)]
    # It stays in sight until somebody has settled it.
    assert due(drain) == [(run_id, True)]


def test_a_lease_that_fades_is_found_for_its_own_worker_before_it_ends(drain: Drain) -> None:
    run_id = begun(drain)
    drain.age(55)
    assert due(drain, mine=["other"], fading_secs=7.5) == [(run_id, True)]
    assert due(drain, mine=["another"], fading_secs=7.5) == []


def test_a_step_given_back_is_announced_again_no_later_than_it_says(drain: Drain) -> None:
    handle = drain.enqueue(drain.agents["test"])
    drain.age(4)
    assert due(drain) == []
    drain.age(1.5)
    assert due(drain) == [(handle.id, False)]


def test_from_its_claim_to_its_end_a_run_changes_no_indexed_column(drain: Drain) -> None:
    """What makes its UPDATEs cheap: see HOT updates in Postgres' manual."""
    indexed = "select id, number, created_at, deadline_at, lease_look_at, sweep_look_at, parent_run_id from agentq.runs"
    handle, seen = drain.enqueue(drain.agents["test"]), []

    def after(connection: Any, statement: str) -> None:
        if "agentq.runs SET" in statement:
            seen.append(connection.execute(indexed).first())

    with observed(drain.database, after):
        drain.work()
    assert handle.result().text == "done"
    # A claim and a commit for each step.
    assert len(seen) == 2 * 5
    *at_work, last = seen
    assert len(set(at_work)) == 1
    assert (last.lease_look_at, last.sweep_look_at) == (None, None)
