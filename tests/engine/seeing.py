"""A model that says what it was shown, a tool that draws, and what is stored of it: for tests of images and files."""

from typing import Any

from agentq import (
    Agent,
    Handle,
    Image,
    ToolMessage,
    ToolResult,
    tool,
)
from agentq.messages import media_of
from agentq.providers.base import ModelRequest
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from tests.images import png


def answer(request: ModelRequest) -> str:
    """What a model that sees says: the sizes of what it was shown."""
    shown = [one.url or str(len(one.data or b"")) for message in request.messages for one in media_of(message)]
    return " ".join(["saw", *shown])


def saw(*given: bytes) -> str:
    return " ".join(["saw", *(str(len(data)) for data in given)])


SEES = Agent("sees", model=Scripted([answer] * 9))


@tool
def draw(n: int) -> Any:
    """Draw."""
    return [f"drawn {n}:", Image.from_bytes(png(n), name=f"{n}.png"), {"n": n}]


def draws(*numbers: int, inline: bool = False, **more: Any) -> Agent:
    asked = [Call("draw", {"n": n}, id=f"call_{n}") for n in numbers]
    given = tool(inline=True)(draw.function) if inline else draw
    return Agent("draws", model=Scripted([asked, answer]), tools=[given], **more)


def stored(database: Database) -> set[bytes]:
    with database.autocommit() as connection:
        return {bytes(row.data) for row in connection.execute("select data from agentq.blobs", binary=True)}


def count(database: Database, table: str) -> int:
    with database.autocommit() as connection:
        return int(connection.execute(f"select count(*) from agentq.{table}").scalar())


def results(handle: Handle) -> list[ToolResult]:
    return [message.result for message in handle.messages() if isinstance(message, ToolMessage)]
