"""A few scenarios with every test run, and that the audit sees what it looks for; ``make scenarios`` does them all."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from agentq import AssistantMessage, Message, ToolCall, ToolMessage, ToolResult, UserMessage
from agentq.storage.database import Database
from tests.scenarios import library
from tests.scenarios.audit import legal
from tests.scenarios.crew import Crew
from tests.scenarios.killer import Killer
from tests.scenarios.lane import Lane
from tests.scenarios.scenario import SCENARIOS

library.load()
A_FEW = ("approved_by_name", "one_message_after_another", "two_sub_agents_at_once", "hooks_change_what_passes")
logger = logging.getLogger(__name__)


@pytest.fixture
def lane(tmp_path: Path, database: Database, redis_url: str, queue_prefix: str) -> Iterator[Lane]:
    crew = Crew(tmp_path, database, redis_url, queue_prefix)
    killer = Killer(crew)
    yield Lane("redis", crew, killer, Random(1), logger.info)
    crew.stop()
    killer.close()


@pytest.mark.crash
@pytest.mark.slow
def test_scenarios_keep_their_promises_though_a_worker_is_killed_in_each(lane: Lane) -> None:
    lane.run([SCENARIOS[name] for name in A_FEW])
    assert lane.is_good, [each.problem for each in lane.tried] + lane.problems
    assert {each.name for each in lane.tried if each.hit} == set(A_FEW)


def test_there_are_sixty_scenarios_and_each_has_a_moment_to_kill_in() -> None:
    assert len(SCENARIOS) >= 60
    assert all(scenario.kills for scenario in SCENARIOS.values())


def test_a_seed_gives_the_same_moments_again() -> None:
    first, second = (
        [scenario.moment(chance) for scenario in SCENARIOS.values() for chance in [Random(f"{seed}{scenario.name}")]]
        for seed in (1, 1)
    )
    assert first == second


ASKED = AssistantMessage(calls=tuple(ToolCall(id=f"call_{n}", name="pay", arguments="{}") for n in range(2)))
FIRST, SECOND = (ToolMessage(result=ToolResult(call_id=f"call_{n}", name="pay", text="paid")) for n in range(2))
GO, DONE = UserMessage(text="go"), AssistantMessage(text="done")


def test_the_audit_takes_calls_that_are_answered_once_and_in_order() -> None:
    legal([GO, ASKED, FIRST, SECOND, DONE])


@pytest.mark.parametrize(
    "messages",
    [
        [GO, ASKED, SECOND, FIRST, DONE],
        [GO, ASKED, FIRST, DONE],
        [GO, ASKED, FIRST, SECOND, SECOND, DONE],
        [GO, FIRST, DONE],
        [GO, ASKED, FIRST, GO, SECOND, DONE],
    ],
    ids=["swapped", "missing", "twice", "unasked", "late"],
)
def test_the_audit_refuses_a_transcript_that_a_provider_would_refuse(messages: Sequence[Message]) -> None:
    with pytest.raises(AssertionError):
        legal(messages)
