"""Two projects, or a deploy that adds an agent: workers with different agents on one database, broker and queue."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from agentq.storage.database import Database
from tests.workers.fleet import Fleet, Worker

CODE = """
import sys
sys.path.insert(0, {root!r})
from agentq import Agent, RunContext, tool
from agentq.providers.scripted import Call, Scripted
from tests.workers.agents_under_test import log

@tool
def act(n: int, ctx: RunContext) -> str:
    "Say that it runs."
    log("begin", n=n, run=ctx.run_id)
    return "done"

batch = [Call("act", {{"n": n}}) for n in (1, 2, 3)]
{name} = Agent({name!r}, model=Scripted([Call("act", {{"n": 0}}), batch, "by {name}"]), tools=[act])
"""
RUNS = 25
# Every step that is put off as where nobody has its agent; for a second or some it may be where all who have are busy.
WATCH = (
    "CREATE TABLE public.put_off (run_id text, secs float)",
    """CREATE FUNCTION public.put_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.put_off VALUES (NEW.id, extract(epoch FROM NEW.due_at - now())); RETURN NULL; END $$""",
    """CREATE TRIGGER put_off AFTER UPDATE ON agentq.runs FOR EACH ROW
        WHEN (NEW.due_at > now() + interval '9 s') EXECUTE FUNCTION public.put_off()""",
)
UNWATCH = ("DROP FUNCTION IF EXISTS public.put_off CASCADE", "DROP TABLE IF EXISTS public.put_off")


@contextmanager
def watched(database: Database) -> Iterator[Callable[[], list[str]]]:
    """What was put off since."""

    def put_off() -> list[str]:
        with database.autocommit() as connection:
            return connection.execute("SELECT run_id || ' by ' || secs FROM public.put_off").scalars()

    with database.transaction() as connection:
        for statement in UNWATCH + WATCH:
            connection.execute(statement)
    try:
        yield put_off
    finally:
        with database.transaction() as connection:
            for statement in UNWATCH:
                connection.execute(statement)


def start(fleet: Fleet, name: str) -> tuple[Worker, Worker]:
    place = fleet.folder / f"{name}_agents.py"
    place.write_text(CODE.format(root=str(Path(__file__).parents[2]), name=name))
    fleet.agents = place
    return fleet.both(concurrency=2)


def test_workers_with_different_agents_leave_each_other_their_runs_and_put_none_off(redis_fleet: Fleet) -> None:
    workers = [*start(redis_fleet, "mine"), *start(redis_fleet, "theirs")]
    with watched(redis_fleet.database) as put_off:
        runs = {name: redis_fleet.client.enqueue_many(name, ["go"] * RUNS) for name in ("mine", "theirs")}
        for name, handles in runs.items():
            assert {handle.wait(timeout=60).text for handle in handles} == {f"by {name}"}
        assert put_off() == []
    for worker in workers:
        assert "ERROR" not in worker.text()
        # Once an agent and process, however many runs it was.
        assert worker.text().count("left to workers that have it") <= worker.concurrency + 1
    assert len(redis_fleet.calls("begin")) == 2 * RUNS * 4
