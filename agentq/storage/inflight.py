"""The read behind ``check-inflight``: every open run with the calls that it waits for, page by page of one moment."""

from collections.abc import Iterator

from agentq.inflight import OpenRun, WaitingCall
from agentq.storage.sql import Connection, Row, text
from agentq.storage.steps import last_reply

_PAGE = 200
# Of a turn's only call without a row the reply says all.
_OPEN = text("""
    DECLARE agentq_open NO SCROLL CURSOR FOR
    SELECT r.id, r.agent, r.agent_version, r.on_unknown IS NOT NULL AS is_single, c.calls,
        CASE WHEN r.on_unknown IS NOT NULL OR c.calls IS NOT NULL THEN (
            SELECT j.messages FROM agentq.journal j WHERE j.run = r.number AND j.number = r.reply) END AS said
    FROM agentq.runs r LEFT JOIN LATERAL (
        SELECT json_agg(json_build_object(
            'index', c.index, 'tool', c.tool, 'kind', c.kind, 'has_run', c.child_run_id IS NOT NULL, 'asks', (
                SELECT a.kind FROM agentq.approvals a
                WHERE (a.run_id, a.turn, a.index) = (c.run_id, c.turn, c.index) AND a.status = 'pending' LIMIT 1),
            'edited', (
                SELECT a.edited FROM agentq.approvals a
                WHERE (a.run_id, a.turn, a.index) = (c.run_id, c.turn, c.index) AND a.kind = 'approval'
                ORDER BY a.number DESC LIMIT 1)) ORDER BY c.index) AS calls
        FROM agentq.tool_calls c
        WHERE c.run_id = r.id AND c.turn = r.turn AND c.status <> 'done') c ON r.phase IN ('review', 'tools')
    WHERE r.status NOT IN ('completed', 'failed', 'cancelled')
""")
_MORE = text(f"FETCH {_PAGE} FROM agentq_open")
_CLOSE = text("CLOSE agentq_open")


def open_runs(connection: Connection) -> Iterator[OpenRun]:
    """All of them; needs a transaction, which holds no more of them than a page."""
    connection.execute(_OPEN)
    while rows := connection.execute(_MORE).all():
        yield from map(_open_run, rows)
    connection.execute(_CLOSE)


def _open_run(row: Row) -> OpenRun:
    calls: tuple[WaitingCall, ...] = ()
    if row.said is not None:
        asked = last_reply(row.said).calls
        if row.is_single:
            calls = (WaitingCall(asked[0].name, asked[0].arguments),)
        else:
            calls = tuple(
                WaitingCall(
                    tool=call["tool"],
                    arguments=call["edited"] or asked[call["index"]].arguments,
                    kind=call["kind"],
                    asks=call["asks"],
                    has_run=call["has_run"],
                )
                for call in row.calls
            )
    return OpenRun(row.id, row.agent, row.agent_version, calls)
