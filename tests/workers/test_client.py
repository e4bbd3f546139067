"""What a client and a thread refuse before anything is sent, and how they look in a log."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentq import Agent, Client, ConfigError, UnknownAgentError
from agentq.config import Settings
from agentq.storage import leases
from agentq.storage.database import Database


@pytest.fixture
def client(database: Database, embedded_broker_url: str) -> Iterator[Client]:
    url = database.url
    with Client(settings=Settings(database_url=url, broker_url=embedded_broker_url)) as opened:
        yield opened


@pytest.mark.parametrize("text", ["", " ", 5, None, [], {"text": "hi"}])
def test_a_message_is_a_text(client: Client, text: Any) -> None:
    with pytest.raises(ConfigError, match="a run needs a message"):
        client.enqueue("rep", text)


def test_an_agent_nobody_ever_had_is_refused_unless_the_producer_knows_better(
    client: Client, database: Database
) -> None:
    with database.autocommit() as connection:
        leases.know_agents(connection, ["other"])
    with pytest.raises(UnknownAgentError):
        client.enqueue("new", "hi")
    handle = client.enqueue("new", "hi", allow_unknown=True)
    assert (handle.run().agent, handle.status()) == ("new", "queued")


def test_a_client_and_a_thread_show_what_they_are_without_a_password(client: Client) -> None:
    assert repr(client).startswith("Client('postgresql://")
    assert repr(Agent("a", model="openai:x").thread("t-1")) == "Thread('t-1', Agent('a'))"
