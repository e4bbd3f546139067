"""What a producer or an operator holds: the database, and a broker that is connected to for the first message only."""

import socket
from collections.abc import Iterable
from functools import cached_property
from importlib import import_module
from typing import Self

from agentq import embedded
from agentq.agent import AgentSpec
from agentq.config import Settings, load
from agentq.control import Control
from agentq.dispatch import Dispatcher
from agentq.heartbeat import Heartbeat
from agentq.providers.registry import resolve
from agentq.registry import by_name
from agentq.services import Services
from agentq.storage.database import Database
from agentq.wire import WakeUp


class Link:
    """Database, broker and agents of a process that is no worker; see ``Client``."""

    def __init__(
        self,
        database_url: str | None = None,
        broker_url: str | None = None,
        *,
        settings: Settings | None = None,
        agents: Iterable[AgentSpec] = (),
    ) -> None:
        settings = settings or load(database_url=database_url, broker_url=broker_url)
        self._embedded = start_embedded(settings) if settings.is_embedded else None
        self.settings = with_embedded(settings, self._embedded)
        self.database = Database(str(self.settings.database_url), pool_size=settings.db_pool_size)
        if settings.database_url is None:
            # Imported here: what brings a schema up to date takes longer to import than all that a producer needs.
            import_module("agentq.storage.migrate").upgrade(self.database)
        self.agents = by_name(agents)

    @cached_property
    def dispatcher(self) -> Dispatcher:
        return _LateDispatcher(self.settings)

    @cached_property
    def control(self) -> Control:
        """For decisions made here: cancel, approve, reject."""
        return Control(
            Services(
                database=self.database,
                agents=self.agents,
                dispatcher=self.dispatcher,
                heartbeat=Heartbeat(self.database, self.settings.lease_secs),
                resolve=resolve,
                worker=f"client@{socket.gethostname()}",
                lease_secs=self.settings.lease_secs,
            )
        )

    def close(self) -> None:
        """Give back connections, and the embedded services where this client started them."""
        self.database.dispose()
        if self._embedded is not None:
            self._embedded.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.database.shown_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _LateDispatcher:
    """Imports Celery and connects at the first message: a process that only reads needs neither."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def send(self, wake_up: WakeUp) -> None:
        self._dispatcher.send(wake_up)

    @cached_property
    def _dispatcher(self) -> Dispatcher:
        from agentq import producer

        app = producer.make_app(str(self._settings.broker_url), queue=self._settings.queue)
        return producer.CeleryDispatcher(app, queue=self._settings.queue)


def start_embedded(settings: Settings) -> "embedded.Embedded":
    """What is not configured: Postgres and broker, or the broker alone."""
    return embedded.start(settings.home) if settings.database_url is None else embedded.broker_only(settings.home)


def with_embedded(settings: Settings, services: "embedded.Embedded | None") -> Settings:
    """The settings with the embedded services' URLs where none is configured."""
    if services is None:
        return settings
    urls = {
        "database_url": settings.database_url or services.database_url,
        "broker_url": settings.broker_url or services.broker_url,
    }
    return settings.model_copy(update=urls)
