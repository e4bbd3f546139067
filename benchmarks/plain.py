"""The limit line of Postgres: ``python -m benchmarks.plain`` runs what it reads from its input, one commit a step.

No framework, no queue, no lease: nothing goes on after a crash. Async, as many connections as runs in progress.
"""

import asyncio
import os
import sys
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from benchmarks import notes, scripts
from benchmarks.scripts import Script, ask_model_async, call_tool_async

DATABASE, CONNECTIONS = "BENCH_DATABASE", "BENCH_CONNECTIONS"
SCHEMA = """
    CREATE TABLE run (id text PRIMARY KEY, status text NOT NULL);
    CREATE TABLE step (run text, number int, kind text NOT NULL, result jsonb NOT NULL, PRIMARY KEY (run, number))
"""
_INSERT_STEP = "INSERT INTO step VALUES (%s, %s, %s, %s)"

Pool = asyncio.Queue["psycopg.AsyncConnection[tuple[Any, ...]]"]


async def main() -> None:
    pool: Pool = asyncio.Queue()
    for _ in range(int(os.environ[CONNECTIONS])):
        pool.put_nowait(await psycopg.AsyncConnection.connect(os.environ[DATABASE], autocommit=True))
    names = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(names), sys.stdin)
    notes.tell("ready", str(os.getpid()))
    async with asyncio.TaskGroup() as runs:
        async for name in names:
            runs.create_task(_run(scripts.current(), pool, name.decode().strip()))


async def _run(script: Script, pool: Pool, run: str) -> None:
    lanes = asyncio.Semaphore(scripts.LANES)

    async def call(number: int, item: int, part: int) -> None:
        async with lanes:
            result = await call_tool_async(script, run, item, part)
        await _execute(pool, _INSERT_STEP, run, number, "tool", Jsonb(result))

    await _execute(pool, "INSERT INTO run VALUES (%s, 'running')", run)
    number = 0
    for turn in range(script.model_calls):
        reply = await ask_model_async(script, run, turn)
        await _execute(pool, _INSERT_STEP, run, number, "model", Jsonb(reply))
        calls = [call(number + 1 + part, turn, part) for part in range(len(reply["tool_calls"]))]
        await asyncio.gather(*calls)
        number += 1 + len(calls)
    await _execute(pool, "UPDATE run SET status = 'completed' WHERE id = %s", run)
    notes.tell("completed", run)


async def _execute(pool: Pool, statement: str, *values: Any) -> None:
    connection = await pool.get()
    try:
        await connection.execute(statement, values)
    finally:
        pool.put_nowait(connection)


if __name__ == "__main__":
    asyncio.run(main())
