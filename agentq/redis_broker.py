"""Put Celery's messages on Redis queues as kombu would, at a third of its cost: for the one hop of every step.

kombu makes a client and declares the queue for every message. What it would send is sent here too, field for field
(``tests/workers/test_redis_queues.py`` compares), and workers read it with kombu. Not for a list of brokers, of which
kombu takes the next where one is away.
"""

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import redis
from kombu import Connection
from kombu.utils.uuid import uuid
from redis.backoff import NoBackoff
from redis.retry import Retry

# ``celery.app.amqp.task_message``: headers, properties, body, event.
TaskMessage = tuple[dict[str, Any], dict[str, Any], Any, Any]


class RedisQueues:
    """One Redis client for all threads of a process, and for its forked children."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._client: redis.Redis | None = None

    def put(self, queue: str, message: TaskMessage, priority: int) -> None:
        """Put a message on a queue. Raises redis.RedisError; a lost connection is opened again once before that.

        ``priority`` is one of kombu's, from 0, which goes first, to 9.
        """
        self._connected().lpush(_list(queue, priority), _envelope(queue, message, priority))

    def _connected(self) -> redis.Redis:
        if self._client is None:
            transport: Any = self._connect().transport
            channel = transport.create_channel(transport)
            # kombu's reading of the URL and of the options, without its limit of ten connections.
            pool = channel.pool
            transport.close_connection(transport)
            again = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
            own = redis.ConnectionPool(pool.connection_class, **{**pool.connection_kwargs, "retry": again})
            self._client = redis.Redis(connection_pool=own)
        return self._client


# The separator is kombu's, and so are the steps, each with a list of its own.
_STEPS = 3


def _list(queue: str, priority: int) -> str:
    step = priority // _STEPS * _STEPS
    return f"{queue}\x06\x16{step}" if step else queue


def _envelope(queue: str, message: TaskMessage, priority: int) -> str:
    headers, properties, body, _ = message
    return json.dumps(
        {
            "body": b64encode(json.dumps(body).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": {
                **properties,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": priority,
                "body_encoding": "base64",
                "delivery_tag": uuid(),
            },
        }
    )
