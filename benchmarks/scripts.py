"""The scripted agent that every work runs: what its model asks for and what its tool answers, whoever carries it."""

import asyncio
import os
import random
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks import notes

VARIABLE = "BENCH_SCRIPT"
# Calls of a turn that run at the same time.
LANES = 8


@dataclass(frozen=True)
class Script:
    """``turns`` replies that ask for ``calls`` tool calls each, then an answer."""

    name: str
    turns: int
    calls: int = 1
    result_chars: int = 0
    model_secs: float = 0.0
    tool_secs: tuple[float, ...] = (0.0,)
    is_idempotent: bool = True
    # Tools in processes of their own, also where they could run with the steps.
    has_tool_pool: bool = False

    @property
    def steps(self) -> int:
        """Model calls and tool calls of a run."""
        return self.model_calls + self.turns * self.calls

    @property
    def model_calls(self) -> int:
        return self.turns + 1

    def secs_of(self, part: int) -> float:
        return self.tool_secs[part % len(self.tool_secs)]

    @property
    def ideal_secs(self) -> float:
        """How long the calls of a turn take at least: each begins, in order, where a lane becomes free first."""
        lanes = [0.0] * LANES
        for part in range(self.calls):
            first = lanes.index(min(lanes))
            lanes[first] += self.secs_of(part)
        return max(lanes)


_SKEW = tuple(0.4 if part % 8 == 3 else 0.05 for part in range(32))
SCRIPTS = {
    script.name: script
    for script in (
        Script("loop", turns=10),
        Script("growth", turns=25, result_chars=20_000),
        Script("even", turns=1, calls=32, tool_secs=(0.1,), has_tool_pool=True),
        Script("skewed", turns=1, calls=32, tool_secs=_SKEW, has_tool_pool=True),
        Script("slow", turns=0, calls=0, model_secs=2.0),
        Script("crash", turns=10, model_secs=0.05, is_idempotent=False),
        Script("start", turns=1, has_tool_pool=True),
    )
}


def current() -> Script:
    """The script of this process, as its environment names it."""
    return SCRIPTS[os.environ[VARIABLE]]


def answer(script: Script, run: str, turn: int) -> dict[str, Any]:
    """The model's reply to its call number ``turn`` of a run, from 0 on."""
    notes.note("model", run, str(turn))
    if turn >= script.turns:
        return {"role": "assistant", "content": f"All {turn} items looked up.", "tool_calls": []}
    calls = [
        {"id": f"call-{turn}-{part}", "name": "lookup", "arguments": {"item": turn, "part": part}}
        for part in range(script.calls)
    ]
    return {"role": "assistant", "content": f"Looking at item {turn}.", "tool_calls": calls}


def looked_up(script: Script, run: str, item: int, part: int) -> dict[str, Any]:
    """What the tool found."""
    notes.note("tool", run, f"{item}.{part}")
    if script.result_chars:
        return {"item": item, "text": _text(script.result_chars, f"{run}/{item}")}
    return {"item": item, "part": part, "ok": True, "price": 1299 + item, "stock": 7}


def ask_model(script: Script, run: str, turn: int) -> dict[str, Any]:
    _spend(script.model_secs)
    return answer(script, run, turn)


def call_tool(script: Script, run: str, item: int, part: int) -> dict[str, Any]:
    _spend(script.secs_of(part))
    return looked_up(script, run, item, part)


def _spend(secs: float) -> None:
    # No time is none: to sleep for it takes the kernel as long as a step's other half.
    if secs > 0:
        time.sleep(secs)


async def ask_model_async(script: Script, run: str, turn: int) -> dict[str, Any]:
    await asyncio.sleep(script.model_secs)
    return answer(script, run, turn)


async def call_tool_async(script: Script, run: str, item: int, part: int) -> dict[str, Any]:
    await asyncio.sleep(script.secs_of(part))
    return looked_up(script, run, item, part)


@cache
def _words() -> list[str]:
    chance = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(4000)]


def _text(length: int, seed: str) -> str:
    """Words, as a tool that reads documents returns them: text that compresses like text."""
    words = random.Random(seed).choices(_words(), k=length // 3)
    return " ".join(words)[:length]
