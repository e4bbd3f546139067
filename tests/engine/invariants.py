"""What must hold of every run at every moment, read from the tables and compared with what really happened."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from agentq.limits import MAX_ATTEMPTS, MAX_CALLS_PER_REPLY, MAX_LANES
from agentq.messages import AssistantMessage, Message, ToolMessage, ToolResult, UserMessage, load_message
from agentq.run import TERMINAL
from tests.engine.scripts import ANSWER, NUDGE, REPEATED, TOOLS, Reality

Row = Any

LEASE_SECS = 15
# The longest wait that is not a person's: a provider's hint of two minutes, and a tenth of it for jitter.
LONGEST_WAIT_SECS = 132

# Results that say that the call was not run.
NOT_RUN = frozenset(
    {"skipped", "unknown_tool", "invalid_arguments", "rejected", "expired", "cancelled", "limit_exceeded"}
)
# Results that say that a worker was lost in the call.
LOST = frozenset({"interrupted", "crashed", "timeout"})
# Columns that may still change when a run has ended: its family is told, and the tests let time pass.
_LOOSE = frozenset({"sweep_at", "due_at", "claimed_at", "lease_look_at", "sweep_look_at"})


# Tests that let time pass move each column by itself.
_ROUNDING = timedelta(milliseconds=1)


@dataclass(frozen=True)
class SingleCall:
    """A turn's only call, which has no row: what its reply and its result say of it."""

    turn: int
    position: int
    call_id: str
    tool: str
    status: str
    code: str | None
    index: int = 0
    kind: str = "tool"
    attempt: int = 0
    lease_token: None = None
    lease_until: None = None
    sweep_at: None = None


@dataclass
class RunRows:
    """One run as it is stored, and the runs that its calls have started."""

    row: Row
    prefix: int = 0
    calls: list[Row] = field(default_factory=list)
    messages: dict[int, Message] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)
    approvals: list[Row] = field(default_factory=list)
    children: list["RunRows"] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.row.id)

    @property
    def has_ended(self) -> bool:
        return self.row.status in TERMINAL

    @property
    def usage(self) -> tuple[int, int]:
        return self.row.input_tokens or 0, self.row.output_tokens or 0

    @property
    def open_calls(self) -> list[Row]:
        """Those that have a row."""
        of_turn = [call for call in self.calls if call.status != "done" and call.turn == self.row.turn]
        return [call for call in of_turn if not isinstance(call, SingleCall)]

    @property
    def replies(self) -> dict[int, AssistantMessage]:
        return {place: message for place, message in self.messages.items() if isinstance(message, AssistantMessage)}

    def story(self) -> str:
        """The run for the one who looks for the fault."""
        row = {name: value for name, value in self.row._asdict().items() if value is not None}
        calls = [f"{c.turn}:{c.index} {c.tool} {c.status} {c.code} {c.lease_until} {c.sweep_at}" for c in self.calls]
        events = [f"{event.number} {event.type} {event.data}" for event in self.events]
        return "\n".join(map(str, [row, *calls, *self.messages.items(), *events]))

    def add_single_calls(self) -> None:
        """The calls of the replies that ask for one, and for which there is no row."""
        turn, known = 0, {call.position for call in self.calls}
        for position, message in sorted(self.messages.items()):
            is_reply = isinstance(message, AssistantMessage)
            # Of an empty reply only the nudge is kept.
            turn += is_reply or (isinstance(message, UserMessage) and message.text.startswith(NUDGE))
            if isinstance(message, AssistantMessage) and len(message.calls) == 1 and position + 1 not in known:
                back = self.messages.get(position + 1)
                code = (back.result.code or "success") if isinstance(back, ToolMessage) else None
                (call,) = message.calls
                status = "done" if code else "pending"
                self.calls.append(SingleCall(turn, position + 1, call.id, call.name, status, code))

    def has_answered(self, parent: "RunRows") -> bool:
        """Whether the call that this run was made for has its answer, and not one that the parent's end gave it."""
        call = next(
            call for call in parent.calls if (call.turn, call.index) == (self.row.parent_turn, self.row.parent_index)
        )
        result = parent.result(call)
        return self.has_ended and result is not None and not result.text.startswith("The run ended before")

    def result(self, call: Row) -> ToolResult | None:
        message = self.messages.get(call.position)
        return message.result if isinstance(message, ToolMessage) else None


class Watch:
    """Looks at all runs, and remembers what may not change any more."""

    def __init__(self, connection: psycopg.Connection[Any], reality: Reality, mishaps: Counter[str]) -> None:
        self._connection = connection
        self._reality = reality
        self._mishaps = mishaps
        self._seen: dict[str, RunRows] = {}
        self._forbidden: list[str] = []
        # What somebody was told is taken: it is said once, for good.
        self.taken: set[str] = set()

    def forbid(self, happened: object, what: str) -> None:
        """For what is noticed in a body, where an assertion would be taken for a failure of the user's code."""
        if happened:
            self._forbidden.append(what)

    def check(self) -> None:
        assert self._forbidden == []
        runs = self._read()
        assert set(self._seen) <= set(runs), "a run has vanished"
        for run in runs.values():
            self._check(run)
        _threads_are_in_order(runs.values())
        self._each_message_is_said_once(runs.values())
        _keys_are_neither_crowded_nor_standing(runs.values())
        self._seen = runs

    def _check(self, run: RunRows) -> None:
        before = self._seen.get(run.id)
        try:
            if before is not None:
                _only_grows(before, run)
            _events_have_no_gaps(run)
            _each_call_has_one_result(run)
            _results_tell_the_truth(run, self._reality, self._mishaps[run.id])
            _counters_are_exact(run)
            _nothing_is_repeated_without_need(run, self._reality, self._mishaps[run.id])
            _lanes_are_bounded(run)
            _times_are_near(run)
            if run.has_ended:
                _the_end_is_tidy(run)
            else:
                _somebody_sees_to(run)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{run.story()}") from error

    def _each_message_is_said_once(self, runs: Iterable[RunRows]) -> None:
        """On its thread, or it waits to be taken up by a run that has not ended."""
        said = Counter(m.text for run in runs for m in run.messages.values() if isinstance(m, UserMessage))
        waiting = self._rows("""
            select message, status from agentq.inbox i join agentq.runs r on r.id = i.run_id where message is not null
        """)
        assert not [row for row in waiting if row.status in TERMINAL], "a message waits in a run that has ended"
        said += Counter(json.loads(row.message)["text"] for row in waiting)
        once = {text: number for text, number in said.items() if text.startswith("message ")}
        assert set(once.values()) <= {1}, "a message was said twice"
        assert once.keys() >= self.taken, "a message was lost"

    def waits_for_a_person(self) -> bool:
        in_time = "status = 'pending' and (expires_at is null or expires_at > now())"
        return bool(self._rows(f"select 1 from agentq.approvals where {in_time} limit 1"))

    def is_quiet(self) -> bool:
        """Whether every run has ended and everybody who has to know of it knows."""
        self.check()
        return all(run.has_ended and run.row.sweep_at is None for run in self._seen.values()) and not self._rows(
            "select 1 from agentq.tool_calls where sweep_at is not null or lease_until is not null limit 1"
        )

    def open_runs(self) -> str:
        return "\n".join(run.story() for run in self._seen.values() if not run.has_ended)

    def _rows(self, query: str) -> list[Row]:
        with self._connection.cursor(row_factory=namedtuple_row) as cursor:
            return cursor.execute(query).fetchall()

    def _read(self) -> dict[str, RunRows]:
        # One transaction sees one state.
        with self._connection.transaction():
            self._connection.execute("set transaction isolation level repeatable read")
            rows = self._rows("""
                select *, extract(epoch from lease_until - now()) as leased_for,
                    extract(epoch from sweep_at - now()) as swept_in from agentq.runs order by created_at, id
            """)
            runs = {row.id: RunRows(row) for row in rows}
            for call in self._rows("select * from agentq.tool_calls order by run_id, turn, index"):
                runs[call.run_id].calls.append(call)
            for message in self._rows(
                "select run_id, position, payload from agentq.messages order by run_id, position"
            ):
                runs[message.run_id].messages[message.position] = load_message(message.payload)
            for event in self._rows("select run_id, number, type, data from agentq.events order by run_id, number"):
                runs[event.run_id].events.append(event)
            for approval in self._rows("select * from agentq.approvals order by run_id, turn, index"):
                runs[approval.run_id].approvals.append(approval)
        for run in runs.values():
            run.add_single_calls()
        _relate(runs)
        return runs


def _relate(runs: dict[str, RunRows]) -> None:
    on_threads: dict[str, list[RunRows]] = defaultdict(list)
    for run in runs.values():
        if run.row.parent_run_id is not None:
            runs[run.row.parent_run_id].children.append(run)
        if run.row.thread_id is not None:
            on_threads[run.row.thread_id].append(run)
    for thread in on_threads.values():
        said = 0
        for run in sorted(thread, key=lambda run: run.row.thread_position):
            run.prefix = said
            said += len(run.messages)


# ---------------------------------------------------------------------------------------------- what was, stays


def _only_grows(before: RunRows, run: RunRows) -> None:
    for name in ("seq", "turn", "message_count", "event_count"):
        assert getattr(run.row, name) >= getattr(before.row, name), f"{name} went back"
    assert before.messages.items() <= run.messages.items(), "a message was changed"
    assert run.events[: len(before.events)] == before.events, "an event was changed"
    decided = [approval for approval in before.approvals if approval.status != "pending"]
    assert all(approval in run.approvals for approval in decided), "a decision was changed"
    done = [(call.turn, call.index, call.code) for call in before.calls if call.status == "done"]
    still_done = {(call.turn, call.index, call.code) for call in run.calls if call.status == "done"}
    assert still_done.issuperset(done), "a call that had come back was changed"
    if before.has_ended:
        assert _final(before) == _final(run), "a run that had ended was changed"


def _final(run: RunRows) -> tuple[Any, ...]:
    row = {name: value for name, value in run.row._asdict().items() if name not in _LOOSE | {"leased_for", "swept_in"}}
    return row, run.messages, run.events, run.approvals, [(call.turn, call.index, call.status) for call in run.calls]


# ---------------------------------------------------------------------------------------------- what is written


def _events_have_no_gaps(run: RunRows) -> None:
    assert [event.number for event in run.events] == list(range(1, run.row.event_count + 1)), "events have gaps"
    committed = [data["seq"] for data in _steps(run)]
    assert len(committed) == len(set(committed)), "a step was committed twice"


def _steps(run: RunRows) -> Iterator[dict[str, Any]]:
    return (json.loads(event.data) for event in run.events if event.type == "step")


def _each_call_has_one_result(run: RunRows) -> None:
    """In its place in the order asked; none while it is out, and none of a call that nobody made."""
    calls = {call.position: call for call in run.calls}
    assert len(calls) == len(run.calls), "two calls share a place"
    expected: dict[int, str] = {}
    for place, reply in run.replies.items():
        expected |= {place + 1 + i: call.id for i, call in enumerate(reply.calls)}
    assert {place: call.call_id for place, call in calls.items()} == expected, "calls are not those of the replies"
    results = {place: m.result.call_id for place, m in run.messages.items() if isinstance(m, ToolMessage)}
    done = {place: call.call_id for place, call in calls.items() if call.status == "done"}
    assert results == done, "results and calls that came back differ"
    written = sorted([*run.messages, *(place for place in calls if place not in done)])
    assert written == list(range(run.row.message_count)), "messages have gaps"


def _results_tell_the_truth(run: RunRows, reality: Reality, mishaps: int) -> None:
    for call in run.calls:
        result = run.result(call)
        if result is None or call.tool not in TOOLS:
            continue
        key = f"{run.id}:{call.turn}:{call.index}"
        happened = reality.effects[key]
        if result.code in NOT_RUN or result.text == ANSWER:
            assert happened == 0, f"{key} is said not to have run"
        elif result.code in LOST:
            assert mishaps or run.has_ended, f"{key} was lost without a cause"
        else:
            assert happened > 0, f"{key} is said to have run"
        if result.code is None and result.text != ANSWER:
            assert result.text == f"did {key}", "a result is in the place of another"


def _counters_are_exact(run: RunRows) -> None:
    # What its sub-agents used for the calls they answered is counted with it.
    answered = [child.usage for child in run.children if child.has_answered(run)]
    replies, (read, written) = run.replies, run.usage
    read, written = (read - sum(used for used, _ in answered), written - sum(used for _, used in answered))
    answers = [data for data in _steps(run) if "input_tokens" in data]
    assert run.row.model_calls == len(answers) == written, "model calls"
    assert sum(data["input_tokens"] for data in answers) == read, "usage"
    nudges = sum(isinstance(m, UserMessage) and m.text.startswith(NUDGE) for m in run.messages.values())
    # The reply that a run failed with is not kept when it is empty, and nobody asks again.
    not_kept = len(answers) - len(replies) - nudges
    assert not_kept in (0, 1 if run.row.status == "failed" else 0), "replies"
    if not nudges and not not_kept:
        assert sum(run.prefix + place for place in replies) == read, "a transcript's length"
    taken = [call for call in run.calls if call.index < MAX_CALLS_PER_REPLY]
    if run.row.error is not None and json.loads(run.row.error).get("details", {}).get("limit") == "tool_calls":
        taken = [call for call in taken if call.turn != run.row.turn]
    assert run.row.tool_calls == len(taken), "tool calls"
    # Between two decisions of people nobody counts down.
    if (run.row.status, run.row.phase) != ("waiting", "review"):
        assert run.row.open_calls == len(run.open_calls), "open calls"
    asked = [call for call in run.open_calls if call.status == "asked"]
    assert run.row.asked_calls == len(asked), "calls that a person is asked about"
    if run.row.phase == "tools" and not run.has_ended:
        only_asked = bool(asked) and len(asked) == len(run.open_calls)
        assert (run.row.status == "waiting") == only_asked, "it waits exactly while nothing but people is waited for"


def _nothing_is_repeated_without_need(run: RunRows, reality: Reality, mishaps: int) -> None:
    saved, made = run.row.model_calls, reality.replies[run.id]
    assert saved <= made <= saved + mishaps, f"{made} replies were made and {saved} saved"
    for call in run.calls:
        happened = reality.effects[f"{run.id}:{call.turn}:{call.index}"]
        assert happened <= (1 + mishaps if call.tool in REPEATED else 1), f"call {call.index} ran {happened} times"
        assert call.attempt <= MAX_ATTEMPTS, f"call {call.index} was begun {call.attempt} times"
    assert run.row.attempt <= MAX_ATTEMPTS, f"a step was begun {run.row.attempt} times"


# ---------------------------------------------------------------------------------------------- who goes on


def _lanes_are_bounded(run: RunRows) -> None:
    assert len(_out(run)) <= MAX_LANES, "more calls are out than there are lanes"


def _out(run: RunRows) -> list[Row]:
    return [call for call in run.open_calls if call.status in ("announced", "running")]


def _times_are_near(run: RunRows) -> None:
    row = run.row
    assert (row.lease_token is None) == (row.lease_until is None), "half a lease"
    assert row.leased_for is None or row.leased_for <= LEASE_SECS, "a lease is too long"
    assert row.swept_in is None or row.swept_in <= LONGEST_WAIT_SECS, "the sweep comes too late"


def _the_end_is_tidy(run: RunRows) -> None:
    row = run.row
    assert row.lease_token is None, "a run that has ended is leased"
    assert row.finished_at is not None, "nobody knows when it ended"
    assert not [call for call in run.calls if call.status != "done"], "a run has ended with open calls"
    assert not [c for c in run.calls if c.lease_token is not None or c.sweep_at is not None], "a call is kept alive"
    assert not [approval for approval in run.approvals if approval.status == "pending"], "somebody is still asked"
    assert (row.error is None) == (row.status == "completed"), "status and error differ"
    told = all(child.has_ended or child.row.cancel_requested for child in run.children)
    assert told or row.status == "completed" or row.sweep_at is not None, "children are left behind"


def _keys_are_neither_crowded_nor_standing(runs: Iterable[RunRows]) -> None:
    of_keys: dict[str, list[Row]] = defaultdict(list)
    for run in runs:
        if run.row.concurrency_key is not None:
            of_keys[run.row.concurrency_key].append(run.row)
    for key, rows in of_keys.items():
        at_work = sum(row.has_place is True for row in rows)
        # The tests give a key one limit.
        (limit,) = {row.concurrency_limit for row in rows}
        assert at_work <= limit, f"{at_work} runs of {key} are at work"
        assert at_work == limit or all(row.has_place is not False for row in rows), f"the line of {key} stands"
        assert all(row.has_place for row in rows if row.lease_token is not None), "a run works without a place"


def _somebody_sees_to(run: RunRows) -> None:
    """A lease, a due time, a line or a named person: for the run, or for each call that is out."""
    row = run.row
    if row.held:
        # The run before it: see _threads_are_in_order.
        assert (row.status, row.due_at, row.lease_token, row.lease_look_at) == ("queued", None, None, None)
        return
    if row.has_place is False:
        assert (row.lease_until, row.sweep_at, row.sweep_look_at) == (None, None, None), "one in line is looked at"
        assert not _out(run), "calls of one in line are out"
        return
    for until, look in ((row.lease_until, row.lease_look_at), (row.sweep_at, row.sweep_look_at)):
        assert until is None or (look is not None and look <= until + _ROUNDING), "the sweep looks too late"
    if row.status == "waiting":
        assert (row.lease_look_at, row.sweep_look_at) == (None, None), "the sweep looks at a run that waits"
        assert row.lease_until is None, "a run is leased that waits for a person"
        assert any(approval.status == "pending" for approval in run.approvals), "nobody is asked"
        return
    if row.lease_until is not None or row.sweep_at is not None:
        assert row.due_at is not None, "a step is never due"
        assert not _out(run), "a step is due while a batch is out"
        return
    assert row.phase == "tools", "nobody sees to the run"
    assert run.open_calls, "nobody sees to the run"
    for call in run.open_calls:
        assert CALL_IS_SEEN_TO[call.status](call, run), f"nobody sees to call {call.index}"


def _pending_is_seen_to(call: Row, run: RunRows) -> bool:
    """It waits for a lane, and none is free; or for a sub-agent, which goes on itself or has its end still to tell."""
    if call.kind == "tool":
        return len(_out(run)) == MAX_LANES
    (child,) = [child for child in run.children if child.id == call.child_run_id]
    return not child.has_ended or child.row.sweep_at is not None


def _is_asked_about(call: Row, run: RunRows) -> bool:
    return any(
        (approval.turn, approval.index, approval.status) == (call.turn, call.index, "pending")
        for approval in run.approvals
    )


# Who sees to a call that has not come back, by its state; a state that is not here is a new one to think about.
CALL_IS_SEEN_TO: Mapping[str, Callable[[Row, RunRows], bool]] = {
    "announced": lambda call, run: call.sweep_at is not None and call.lease_until is None,
    "running": lambda call, run: call.lease_until is not None and call.sweep_at is None,
    "pending": _pending_is_seen_to,
    "asked": lambda call, run: call.lease_until is None and call.sweep_at is None and _is_asked_about(call, run),
}


def _threads_are_in_order(runs: Iterable[RunRows]) -> None:
    """One run of a thread is at work; those behind it are let go by its end, in their order."""
    of_threads: dict[str, list[RunRows]] = defaultdict(list)
    for run in runs:
        if run.row.thread_id is not None:
            of_threads[run.row.thread_id].append(run)
    for thread in of_threads.values():
        thread.sort(key=lambda run: run.row.thread_position)
        at_work = [run for run in thread if not run.has_ended and not run.row.held and run.row.kept is None]
        held = [run for run in thread if not run.has_ended and run.row.held]
        assert len(at_work) <= 1, "a thread has two runs at work"
        for number, run in enumerate(held):
            before = [*at_work, *held[:number]]
            ended = [other for other in thread if other.has_ended and other.row.followed and other.row.sweep_at]
            is_known = any(other.row.followed for other in before) or (bool(ended) and not before)
            assert is_known or run.row.sweep_at is not None, "nobody lets a held run go"
        if at_work and held:
            assert at_work[0].row.thread_position < held[0].row.thread_position, "a run has passed another by"
