"""Running agents from the command line, and looking at what they did, with a worker that serves them."""

import signal
from typing import Any

import pytest

from agentq.facts import Fleet
from agentq.storage import queries
from agentq.storage.database import Database
from agentq.wire import STEP_QUEUE, TOOL_QUEUE
from tests.cli.program import Done, Program
from tests.waiting import eventually

pytestmark = pytest.mark.xdist_group("cli-served")


def enqueue(served: Program, agent: str, *words: str) -> str:
    done = served("run", agent, "hi", "--no-wait", *words)
    assert done.code == 0, done.err
    return done.out.strip()


def show(served: Program, run_id: str) -> Any:
    return served("runs", "show", run_id, "--json", "--messages").json


def wait_for(served: Program, run_id: str, status: str) -> Any:
    return eventually(lambda: (run := show(served, run_id))["status"] == status and run, what=status)


# -- run --


def test_the_answer_and_nothing_else_is_on_stdout(served: Program) -> None:
    assert served("run", "plain", "hi") == Done(0, "fine\n", "")


def test_watching_prints_each_step_on_stderr(served: Program) -> None:
    done = served("run", "adder", "1 + 2", "--watch")
    assert (done.code, done.out) == (0, "three\n")
    lines = done.err.splitlines()
    assert "enqueued" in lines[0]
    assert any("tools" in line and "add" in line for line in lines)
    assert "completed" in lines[-1]


def test_watching_prints_a_streamed_reply_as_it_is_written(served: Program) -> None:
    done = served("run", "teller", "go", "--watch")
    assert (done.code, done.out) == (0, "Once upon a time\n")
    assert "\nOnce upon a time\n" in done.err
    run_id = served("runs", "ls", "--agent", "teller", "--json").lines[0]["id"]
    assert "Once" not in "".join(line for line in served("runs", "show", run_id).out.splitlines()[:-1])


def test_an_answer_with_a_form_is_json(served: Program) -> None:
    assert served("run", "typed", "where").json == {"city": "Riga"}


def test_json_is_one_object_with_the_whole_result(served: Program) -> None:
    result = served("run", "adder", "1 + 2", "--json").json
    assert (result["status"], result["stop_reason"], result["text"]) == ("completed", "final_answer", "three")
    assert [message["role"] for message in result["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_a_run_that_fails_is_code_1_with_its_code_on_stderr(served: Program) -> None:
    done = served("run", "failing", "hi", "--json")
    assert done.code == 1
    assert done.json["error"]["code"] == "provider_request_rejected"
    (line,) = done.err.splitlines()
    assert "(provider_request_rejected)" in line


def test_a_run_that_waits_for_a_person_is_code_4_with_the_command_that_approves(served: Program) -> None:
    done = served("run", "gated", "hi")
    assert (done.code, done.out) == (4, "")
    approve = next(line.split() for line in done.err.splitlines() if "approvals approve" in line)
    assert served(*approve[1:]).code == 0
    assert wait_for(served, approve[3], "completed")["text"] == "over"


def test_not_to_wait_prints_the_runs_id(served: Program) -> None:
    assert served("run", "plain", "hi", "--no-wait", "--json").json["run_id"].startswith("run_")
    assert enqueue(served, "plain").startswith("run_")


def test_a_timeout_is_code_124_and_the_run_goes_on(served: Program) -> None:
    done = served("run", "slow", "hi", "--timeout", "0.2")
    assert done.code == 124
    assert "goes on" in done.err


def test_ctrl_c_is_code_130_and_the_run_goes_on(served: Program) -> None:
    started = served.start("run", "slow", "hi", "--watch")
    started.says("enqueued")
    assert started.end(signal.SIGINT) == 130
    assert "goes on" in started.text()


def test_the_same_key_is_the_same_run(served: Program) -> None:
    first, second = (enqueue(served, "plain", "--idempotency-key", "mail-812") for _ in range(2))
    assert first == second


def test_a_thread_continues(served: Program) -> None:
    assert served("run", "plain", "hi", "--thread", "ticket-1").code == 0
    # The script has one step, and the reply of the first run counts: the second one saw it.
    assert served("run", "plain", "hi", "--thread", "ticket-1").code == 1


def test_an_agent_known_to_workers_only_can_be_run(served: Program) -> None:
    assert served("run", "plain", "hi", AGENTQ_AGENTS="").out == "fine\n"


# -- runs --


def test_runs_are_listed_newest_first_as_one_object_a_line(served: Program) -> None:
    ids = [enqueue(served, "plain", "--tag", "customer=42", "--tag", "list=yes") for _ in range(3)]
    listed = served("runs", "ls", "--tag", "list=yes", "--tag", "customer=42", "--limit", "2", "--json").lines
    assert [run["id"] for run in listed] == ids[:0:-1]
    rest = served("runs", "ls", "--tag", "list=yes", "--before", ids[1], "--agent", "plain", "--json").lines
    assert [run["id"] for run in rest] == ids[:1]


def test_a_list_for_people_cuts_nothing_when_piped(served: Program) -> None:
    value = "x" * 300
    run_id = enqueue(served, "plain", "--tag", f"long={value}")
    wait_for(served, run_id, "completed")
    head, line = served("runs", "ls", "--tag", f"long={value}", "--status", "completed").out.splitlines()
    assert head.split()[:3] == ["RUN", "STATUS", "AGENT"]
    assert run_id in line
    assert value in line


def test_a_run_is_shown_with_its_steps_and_its_conversation(served: Program) -> None:
    run_id = enqueue(served, "adder", "--context", '{"customer": 42}')
    wait_for(served, run_id, "completed")
    text = served("runs", "show", run_id, "--messages").out
    for word in (run_id, "completed", "tools", "add", "three", "2 model calls"):
        assert word in text
    shown = show(served, run_id)
    assert {event["type"] for event in shown["events"]} >= {"run.enqueued", "step", "run.ended"}
    assert shown["messages"][-1]["text"] == "three"


def test_a_long_result_is_shown_in_part_and_whole_as_json(served: Program) -> None:
    run_id = enqueue(served, "long")
    wait_for(served, run_id, "completed")
    text = served("runs", "show", run_id, "--messages").out
    assert f"{'x' * 500}… (2000 characters; --json has them all)" in text
    assert show(served, run_id)["messages"][-2]["result"]["text"] == "x" * 2000


def test_a_run_that_waits_is_shown_with_what_decides_on_it(served: Program) -> None:
    run_id = enqueue(served, "gated")
    wait_for(served, run_id, "waiting")
    assert f"agentq approvals approve {run_id} call_7" in served("runs", "show", run_id).out


def test_a_cancelled_run_ends_and_a_second_cancel_says_so(served: Program) -> None:
    run_id = enqueue(served, "gated")
    wait_for(served, run_id, "waiting")
    assert "is cancelled" in served("runs", "cancel", run_id).out
    assert "failed" not in served("runs", "show", run_id).out
    assert "had ended before: cancelled" in served("runs", "cancel", run_id).out


def test_a_list_that_goes_on_says_so_and_how(served: Program) -> None:
    ids = [enqueue(served, "gated", "--tag", "list=more") for _ in range(2)]
    for run_id in ids:
        wait_for(served, run_id, "waiting")
    first = served("runs", "ls", "--tag", "list=more", "--limit", "1", "--json")
    assert f"--before {ids[1]}" in first.err
    rest = served("runs", "ls", "--tag", "list=more", "--limit", "1", "--json", "--before", ids[1])
    assert ([run["id"] for run in rest.lines], rest.err) == (ids[:1], "")
    first = served("approvals", "ls", "--limit", "1", "--json")
    after = ("--after", first.lines[0]["id"])
    assert " ".join(after) in first.err
    rest = served("approvals", "ls", "--json", *after)
    assert (first.lines + rest.lines, rest.err) == (served("approvals", "ls", "--json").lines, "")


# -- approvals --


def test_a_decision_is_recorded_once_with_who_made_it(served: Program) -> None:
    run_id = enqueue(served, "gated")
    wait_for(served, run_id, "waiting")
    (waiting,) = served("approvals", "ls", "--run", run_id, "--json").lines
    assert (waiting["call_id"], waiting["status"], waiting["arguments"]) == ("call_7", "pending", {"a": 1, "b": 2})
    assert served("approvals", "reject", run_id, "call_7", "--reason", "too dear", "--by", "anna").code == 0
    late = served("approvals", "approve", run_id, "call_7")
    assert late.code == 1
    assert "rejected by anna" in late.err
    (decided,) = served("approvals", "ls", "--run", run_id, "--all", "--json").lines
    assert (decided["status"], decided["decided_by"], decided["reason"]) == ("rejected", "anna", "too dear")
    assert "too dear" in str(wait_for(served, run_id, "completed")["messages"])


def test_who_decides_once_more_in_the_same_way_has_nothing_to_do(served: Program) -> None:
    run_id = enqueue(served, "gated")
    wait_for(served, run_id, "waiting")
    changed = ("--arguments", '{"a": 40, "b": 2}')
    approve = ("approvals", "approve", run_id, "call_7")
    assert served(*approve, *changed, "--by", "anna").code == 0
    again = served(*approve, *changed, "--by", "otto")
    assert (again.code, "nothing to do: call 'call_7' is approved by anna since" in again.out) == (0, True)
    # What would not hold is said.
    for other in (approve, (*approve, "--arguments", "{}"), (*approve, "--sticky")):
        refused = served(*other)
        assert (refused.code, "is approved by anna since" in refused.err) == (1, True)
    rejected = served("approvals", "reject", run_id, "call_7", "--reason", "no")
    assert (rejected.code, "is approved by anna since" in rejected.err) == (1, True)


def test_waiting_calls_are_listed_with_their_arguments(served: Program) -> None:
    run_id = enqueue(served, "gated")
    wait_for(served, run_id, "waiting")
    assert '{"a": 1, "b": 2}' in served("approvals", "ls", "--run", run_id).out


def test_a_person_may_change_the_arguments_and_the_record_shows_both(served: Program) -> None:
    run_id = enqueue(served, "gated")
    wait_for(served, run_id, "waiting")
    unfit = served("approvals", "approve", run_id, "call_7", "--arguments", "[1]")
    assert unfit.code == 2
    assert "a JSON object is wanted" in unfit.err
    changed = ("--arguments", '{"a": 40, "b": 2}', "--reason", "typo", "--by", "anna")
    assert served("approvals", "approve", run_id, "call_7", *changed).code == 0
    assert "42" in str(wait_for(served, run_id, "completed")["messages"])
    shown = served("approvals", "show", run_id, "call_7").out
    assert all(word in shown for word in ('{"a":1,"b":2}', '{"a": 40, "b": 2}', "typo", "anna", "approved"))
    assert served("approvals", "show", run_id, "call_8").code == 1


def test_a_person_may_answer_in_place_of_the_tool(served: Program) -> None:
    run_id = enqueue(served, "gated")
    wait_for(served, run_id, "waiting")
    assert served("approvals", "respond", run_id, "call_7", "--result", "about three").code == 0
    assert "about three" in str(wait_for(served, run_id, "completed")["messages"])


# -- threads --


def test_a_thread_is_shown_cut_copied_and_deleted(served: Program) -> None:
    thread = f"t-{enqueue(served, 'gated')}"
    run_id = enqueue(served, "gated", "--thread", thread)
    wait_for(served, run_id, "waiting")
    assert "thread f-" in served("threads", "fork", thread, f"f-{thread}", "--at", "1").out
    assert served("threads", "delete", thread).code == 1
    assert served("runs", "cancel", run_id).code == 0
    assert served("threads", "show", thread).out.split()[:2] == ["1", "user"]
    assert f"thread {thread} has 1 message left" in served("threads", "rewind", thread, "1").out
    assert len(served("threads", "show", thread, "--json").lines) == 1
    assert f"thread {thread} is deleted, with 1 run" in served("threads", "delete", thread).out
    gone = served("threads", "rewind", thread, "0")
    assert (gone.code, gone.err) == (5, f"agentq: there is no thread {thread!r}; see: agentq threads ls\n")


def test_threads_are_listed_in_pages_and_runs_by_their_thread(served: Program) -> None:
    old, new = (f"t{number}-{enqueue(served, 'gated')}" for number in (1, 2))
    runs = {thread: enqueue(served, "gated", "--thread", thread) for thread in (old, new)}
    for thread, run_id in runs.items():
        wait_for(served, run_id, "waiting")
        assert [run["id"] for run in served("runs", "ls", "--thread", thread, "--json").lines] == [run_id]
    listed = served("threads", "ls", "--json").lines
    (first, second) = [each for each in listed if each["id"] in runs]
    assert (first["id"], first["runs"], first["last_run_id"], first["agent"]) == (new, 1, runs[new], "gated")
    assert (second["id"], second["status"]) == (old, "waiting")
    page = served("threads", "ls", "--limit", "1", "--before", new)
    assert page.out.splitlines()[1].split()[:3] == [old, "waiting", "1"]
    missing = [("threads", "show", "nope"), ("threads", "ls", "--before", "nope")]
    for command in missing:
        gone = served(*command)
        assert (gone.code, gone.err) == (5, "agentq: there is no thread 'nope'; see: agentq threads ls\n")
    assert served("runs", "ls", "--thread", "nope").code == 0


def test_a_cancelled_run_is_retried(served: Program) -> None:
    run_id = enqueue(served, "gated")
    wait_for(served, run_id, "waiting")
    assert served("runs", "retry", run_id).code == 1
    served("runs", "cancel", run_id)
    assert f"run {run_id} goes on" in served("runs", "retry", run_id, "--limit", "model_calls", "30").out
    wait_for(served, run_id, "completed")


# -- why --


def test_work_for_running_workers_is_not_said_to_lack_one(served: Program) -> None:
    database = Database(served.settings["AGENTQ_DATABASE_URL"])
    with database.autocommit() as connection:
        fleet = Fleet(queries.workers(connection), served.settings["AGENTQ_QUEUE"])
    database.dispose()
    for queue in (STEP_QUEUE, TOOL_QUEUE, "agentq_test_cli_gpu"):
        assert fleet.gap(queue, "adder") is None
    assert fleet.gap("nobody_consumes_it", "adder") is not None


def test_a_run_that_waits_for_a_person_is_explained_and_not_stuck(served: Program) -> None:
    run_id = enqueue(served, "gated")
    wait_for(served, run_id, "waiting")
    assert f"agentq approvals approve {run_id} call_7" in served("why", run_id).out
    assert served("doctor", "--stuck").code == 0


# -- doctor --


def test_the_doctor_finds_a_served_installation_in_order(served: Program) -> None:
    found = served("doctor", "--json")
    assert found.code == 0
    # The queue of one tool is the only one that nobody set up a worker for: agentq worker serves it too.
    assert [check for check in found.json["checks"] if check["status"] != "OK"] == []
    assert "WARN" not in served("doctor").out
