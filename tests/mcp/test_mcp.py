"""Tools of real MCP servers, over stdio and HTTP, in real runs."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentq import Agent, Handle, ToolMessage, ToolResult
from agentq.arguments import ArgumentsError
from agentq.errors import ConfigError
from agentq.mcp import McpServer, close_all
from agentq.messages import media_of
from agentq.providers.scripted import Call, Scripted
from agentq.storage.database import Database
from agentq.tools import Tool
from tests.engine.drain import Drain
from tests.waiting import eventually

SERVER = Path(__file__).parent / "server.py"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AGENTQ_TEST_MCP_LOG", str(tmp_path / "log"))
    yield tmp_path / "log"
    close_all()


@pytest.fixture
def shop(log: Path) -> McpServer:
    env = {"AGENTQ_TEST_MCP_LOG": str(log), "SHOP_TOKEN": "$MY_TOKEN"}
    os.environ.setdefault("MY_TOKEN", "s3cret")
    return McpServer("shop", command=[sys.executable, str(SERVER)], env=env)


@pytest.fixture
def web(log: Path) -> Iterator[tuple[McpServer, Any]]:
    """The same over HTTP, and a function that kills it and starts it again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        for each in running:
            each.kill()
            each.wait()
        running.append(subprocess.Popen([sys.executable, str(SERVER), str(port)]))
        eventually(lambda: is_open(port), within=30, what="it listens")

    start()
    yield McpServer("web", url=f"http://127.0.0.1:{port}/mcp", headers={"authorization": "$WEB_KEY"}), start
    running[-1].kill()
    running[-1].wait()


def is_open(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def called(database: Database, tools: list[Tool], *calls: Call, **options: Any) -> list[ToolResult]:
    """The results of one turn with these calls."""
    drain = Drain(database, agent := Agent("test", model=Scripted([list(calls), "done"]), tools=tools, **options))
    handle = drain.enqueue(agent)
    drain.work()
    return results(handle)


def results(handle: Handle) -> list[ToolResult]:
    return [message.result for message in handle.messages() if isinstance(message, ToolMessage)]


def test_its_tools_are_listed_with_names_that_every_provider_takes(shop: McpServer) -> None:
    tools = {tool.name: tool for tool in shop.tools(prefix="shop_", timeout=5, queue="mcp")}
    assert {"shop_price", "shop_stock_count", "shop_draw"} <= tools.keys()
    price = tools["shop_price"]
    assert price.description == "What so many of an item cost."
    assert price.schema["required"] == ["item"]
    assert (price.timeout, price.queue, price.on_unknown) == (5, "mcp", "report")
    assert [tool.on_unknown for tool in shop.tools(["price"], idempotent=["price"])] == ["retry"]
    assert [tool.name for tool in shop.tools(["stock.count"])] == ["stock_count"]


def test_what_does_not_fit_its_schema_never_reaches_it(shop: McpServer, database: Database, log: Path) -> None:
    (price,) = shop.tools(["price"])
    wrong, right = called(database, [price], Call("price", {"item": 3}), Call("price", {"item": "tea", "count": None}))
    assert (wrong.code, right.text) == ("invalid_arguments", "1 tea: 3 euros")
    assert "item: must be of type string" in wrong.text
    assert log.read_text().count("price") == 1
    with pytest.raises(ArgumentsError):
        price.parameters.parse("[1]")


def test_every_form_of_result_comes_through(shop: McpServer, database: Database) -> None:
    calls = [Call("stock_count", {"item": "tea"}), Call("draw"), Call("refuse"), Call("token"), Call("keys")]
    stock, dot, refused, token, key = called(database, shop.tools(), *calls)
    assert json.loads(stock.text) == {"left": 7}
    assert dot.text.startswith("a dot")
    assert [image.media_type for image in media_of(ToolMessage(result=dot))] == ["image/png"]
    assert (refused.status, "not on Sundays" in refused.text) == ("error", True)
    assert token.text == os.environ["MY_TOKEN"]
    assert key.text.startswith("run_")


def test_one_server_is_started_for_all_calls_of_a_process(shop: McpServer, database: Database, log: Path) -> None:
    tools = shop.tools(["price"])
    for _ in range(3):
        called(database, tools, *[Call("price", {"item": f"i{n}"}) for n in range(4)])
    assert log.read_text().count("started") == 2  # one to list, one to call


def test_a_call_that_kills_its_server_is_told_as_unknown_and_run_again_only_where_that_is_allowed(
    shop: McpServer, database: Database, log: Path
) -> None:
    (once,) = called(database, shop.tools(["crash"]), Call("crash", {"item": "a"}))
    assert (once.status, "nobody knows whether it took effect" in once.text) == ("error", True)
    assert log.read_text().count("crash a") == 1
    (twice,) = called(database, shop.tools(["crash"], idempotent=["crash"]), Call("crash", {"item": "b"}))
    assert (twice.status, twice.text) == ("success", "at the second try")


def test_a_server_that_died_between_two_calls_is_started_again(shop: McpServer, database: Database, log: Path) -> None:
    tools = shop.tools(["price"])
    called(database, tools, Call("price", {"item": "tea"}))
    pid = int(log.read_text().split("started ")[-1].split()[0])
    os.kill(pid, signal.SIGKILL)
    (again,) = called(database, tools, Call("price", {"item": "tea"}))
    assert again.status == "success"


def test_a_call_has_the_time_limit_of_any_tool(shop: McpServer, database: Database) -> None:
    (slow,) = called(database, shop.tools(["slow"], timeout=1), Call("slow"))
    assert slow.code == "timeout"


def test_a_person_is_asked_before_it_is_called(shop: McpServer, database: Database, log: Path) -> None:
    tools = shop.tools(["price"])
    script = Scripted([Call("price", {"item": "tea"}), "done"])
    drain = Drain(database, agent := Agent("test", model=script, tools=tools, approve=["price"]))
    handle = drain.enqueue(agent)
    drain.work()
    assert "price" not in log.read_text()
    (asked,) = handle.approvals()
    handle.approve(asked.call_id, arguments={"item": "tea", "count": 2})
    drain.work()
    assert results(handle)[0].text.endswith("2 tea: 6 euros")


def test_over_http_it_is_the_same_with_a_key_from_the_environment(
    web: tuple[McpServer, Any], database: Database, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, start = web
    monkeypatch.setenv("WEB_KEY", "Bearer k3y")
    tools = server.tools(["price", "draw"])
    price, dot = called(database, tools, Call("price", {"item": "tea"}), Call("draw"))
    assert (price.text, dot.text[:5]) == ("1 tea: 3 euros", "a dot")
    assert {line for line in log.read_text().splitlines() if line.startswith("key")} == {"key Bearer k3y"}
    # The same server for somebody else: not on a connection that was opened with another key.
    other = replace(server, headers={"authorization": "Bearer 0ther"})
    called(database, other.tools(["price"]), Call("price", {"item": "tea"}))
    said = log.read_text().splitlines()
    assert said[len(said) - 2 - said[::-1].index("price tea")] == "key Bearer 0ther"
    start()
    (again,) = called(database, tools, Call("price", {"item": "tea"}))
    assert again.status == "success"
    assert "k3y" not in repr(server)


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (lambda: McpServer("x"), "give its command"),
        (lambda: McpServer("x", command="npx thing"), "as a list"),
        (lambda: McpServer("x", url="localhost:1"), "begins with http"),
        (lambda: McpServer("x", command=["/no/such/program"]).tools(), "'x' cannot be used"),
        (lambda: McpServer("x", url="http://127.0.0.1:1/mcp").tools(), "'x' cannot be used"),
        (lambda: McpServer("x", command=["cat"], env={"A": "$NO_SUCH_VARIABLE"}).tools(), "NO_SUCH_VARIABLE"),
        (lambda: McpServer("x", command=["sleep", "60"], connect_secs=1).tools(), "within 1 s"),
    ],
)
def test_a_server_that_cannot_be_used_is_a_clear_error_at_once(server: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        server()


def test_a_tool_it_does_not_have_is_named_with_those_it_has(shop: McpServer) -> None:
    with pytest.raises(ConfigError, match=r"no tool 'prise'; it has .*price"):
        shop.tools(["prise"])
