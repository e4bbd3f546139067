"""Queues of RabbitMQ that know priorities, and those of an earlier release, which do not and cannot be given them.

What a queue can do is settled when it is declared, and declaring it again with other arguments is refused. So each
declaration asks first, on a channel of its own, because a refusal closes the channel.
"""

import logging
from typing import Any

import kombu
from amqp.exceptions import NotFound, PreconditionFailed
from celery.app.amqp import AMQP, Queues

logger = logging.getLogger(__name__)

# A quorum queue, which is never declared with priorities, takes what has five and more before the rest.
MAX_PRIORITY = 5


class PriorityQueue(kombu.Queue):
    """Declared with priorities, unless it is there without them."""

    def queue_declare(self, nowait: bool = False, passive: bool = False, channel: Any = None) -> Any:
        channel = channel or self.channel
        if passive or _declare(channel, self):
            return super().queue_declare(nowait=nowait, passive=True, channel=channel)
        logger.info("queue %s was declared without priorities: its messages are taken in their order", self.name)
        return super().queue_declare(nowait=nowait, channel=channel)


def _declare(channel: Any, queue: kombu.Queue) -> bool:
    """False where it is there without priorities."""
    aside = channel.connection.channel()
    try:
        arguments = {**(queue.queue_arguments or {}), "x-max-priority": MAX_PRIORITY}
        aside.queue_declare(
            queue=queue.name,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            arguments=arguments,
        )
    except PreconditionFailed:
        return False
    else:
        return True
    finally:
        aside.close()


class PriorityQueues(Queues):
    """All queues of an app: those it is told of, and those it makes when they are named."""

    def _add(self, queue: kombu.Queue) -> kombu.Queue:
        options: dict[str, Any] = {name: getattr(queue, name) for name, _ in queue.attrs}
        added: kombu.Queue = super()._add(PriorityQueue(**options))  # type: ignore[misc]
        return added


class PriorityAMQP(AMQP):
    """For ``Celery(amqp=…)``."""

    queues_cls = PriorityQueues


def knows_priorities(connection: kombu.Connection, queue: str) -> bool:
    """Whether the queue's messages are taken by priority, or will be: where there is no queue yet none is made."""
    channel: Any = connection.channel()
    try:
        channel.queue_declare(queue=queue, passive=True)
    except NotFound:
        return True
    return _declare(channel, kombu.Queue(queue))
