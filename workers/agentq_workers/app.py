"""The Celery app of a worker: settings, tasks and the chord barrier put together."""

from collections.abc import Callable, Iterable

from celery import Celery

from agentq import producer, wire
from agentq.agent import AgentSpec
from agentq.config import Settings, load
from agentq.errors import ConfigError
from agentq.registry import by_name, load_agents
from agentq.services import no_probe
from agentq.wire import TOOL_QUEUE
from agentq_workers import connection, lifecycle, log
from agentq_workers.runtime import Runtime
from agentq_workers.tasks import register


def make_app(
    settings: Settings | None = None,
    *,
    agents: Iterable[AgentSpec] | None = None,
    probe: Callable[[str, str], None] = no_probe,
) -> Celery:
    """A Celery app with agentq's tasks; start it with ``celery -A module:app worker``, or use ``agentq worker``.

    ``settings`` default to ``AGENTQ_*``, ``agents`` to those named by ``AGENTQ_AGENTS``; ``probe`` is for crash
    tests. Raises ConfigError for wrong settings or agents, and where no database or broker is named: a worker of a
    fleet must not start one of its own.
    """
    settings = settings or load()
    if settings.database_url is None or settings.broker_url is None:
        raise ConfigError(
            "a worker needs AGENTQ_DATABASE_URL and AGENTQ_BROKER_URL; agentq worker sets the embedded ones"
        )
    known = load_agents(settings.agents) if agents is None else by_name(agents)
    app = producer.make_app(settings.broker_url, queue=settings.queue)
    app.conf.update(
        result_backend="agentq_workers.chord:BarrierBackend",
        task_create_missing_queues=True,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        # It would be put back by whichever thread has done its task, on the connection that the main thread reads: both
        # wait for the same answer, and a threads pool takes no more work after a restart of RabbitMQ.
        worker_enable_prefetch_count_reduction=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,  # what a tool prints is no warning of ours
        # Celery gives up on the whole pool when a child is not up in 4 s, as on a machine that is busy.
        worker_proc_alive_timeout=60.0,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
    )
    runtime = Runtime(settings, known, app, probe=probe)
    register(app, runtime)
    lifecycle.attach(app, runtime)
    connection.attach(app)
    log.attach(app, settings)
    return app


def physical(queue: str, settings: Settings) -> str:
    return wire.physical(queue, settings.queue)


def tool_queues(settings: Settings, agents: Iterable[AgentSpec]) -> list[str]:
    """The queues a tools worker consumes: agentq's own, and those that tools of these agents are routed to."""
    own = {tool.queue for agent in agents for tool in agent.tools.values() if tool.queue and not tool.inline}
    return [physical(TOOL_QUEUE, settings), *sorted(physical(queue, settings) for queue in own)]
