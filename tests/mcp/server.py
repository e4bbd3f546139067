"""A real MCP server, for the tests: over stdio, or over HTTP with ``server.py PORT``. What it does is in LOG."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError

LOG = Path(os.environ["AGENTQ_TEST_MCP_LOG"])
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc000000301010018dd8db00000000049454e44ae426082"
)
server = MCPServer("shop")


def log(line: str) -> None:
    with LOG.open("a") as file:
        file.write(line + "\n")


@server.tool()
def price(item: str, count: int = 1) -> str:
    """What so many of an item cost."""
    log(f"price {item}")
    return f"{count} {item}: {count * 3} euros"


@server.tool(name="stock.count")
def stock(item: str) -> dict[str, int]:
    """How many there are."""
    return {"left": 7}


@server.tool(structured_output=False)
def draw() -> list[Any]:
    """Draw a dot."""
    return ["a dot", Image(data=PIXEL, format="png")]


@server.tool()
def refuse() -> str:
    """Refuse."""
    raise ToolError("not on Sundays")


@server.tool()
def crash(item: str) -> str:
    """End the server in the middle of the call, the first time."""
    log(f"crash {item}")
    if LOG.read_text().count(f"crash {item}") == 1:
        os._exit(1)
    return "at the second try"


@server.tool()
def slow() -> str:
    """Take a minute."""
    log("slow")
    time.sleep(60)
    return "late"


@server.tool()
def keys(ctx: Context) -> str:
    """The idempotency key of the call."""
    return str((ctx.request_context.meta or {}).get("agentq/idempotency_key"))


@server.tool()
def token() -> str:
    """A secret that it was started with."""
    return os.environ.get("SHOP_TOKEN", "none")


def logged(app: Any) -> Any:
    """The app, with the key of each request written down."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        for name, value in scope.get("headers", ()):
            if name == b"authorization":
                log(f"key {value.decode()}")
        await app(scope, receive, send)

    return answer


if __name__ == "__main__":
    log(f"started {os.getpid()}")
    if len(sys.argv) > 1:
        uvicorn.run(logged(server.streamable_http_app()), port=int(sys.argv[1]), log_level="warning")
    else:
        server.run()
