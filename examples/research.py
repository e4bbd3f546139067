"""Two agents: an editor that hands questions to a researcher, whose answer has a form.

agentq worker --agents examples/research.py
agentq run editor "What changed in Postgres 18 for queue tables?"
"""

import asyncio
import os

from pydantic import BaseModel

from agentq import Agent, tool

MODEL = os.environ.get("EXAMPLE_MODEL", "openai:gpt-5.2")


class Report(BaseModel):
    """What a reader gets."""

    headline: str
    findings: list[str]


# Up to eight calls of one reply run at once, in several processes.
@tool(idempotent=True, timeout=20)
async def search(query: str) -> list[str]:
    """Search the web; a few lines each."""
    await asyncio.sleep(0.5)
    return [f"nothing is known about {query}: put a real search in here"]


researcher = Agent(
    "researcher",
    model=MODEL,
    instructions="Search for several aspects at once, then say what you found, with sources.",
    description="Finds things out.",
    tools=[search],
)

editor = Agent(
    "editor",
    model=MODEL,
    instructions="Split the question, ask the researcher about each part, and write the report.",
    tools=[researcher.as_tool()],
    output=Report,
    limits={"model_calls": 12, "tokens": 200_000},
)
