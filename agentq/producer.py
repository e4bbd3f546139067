"""Send wake-ups through Celery: the one module below the workers that imports it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from celery import Celery, chord
from celery.signals import after_task_publish, before_task_publish
from celery.utils import uuid
from kombu.exceptions import ChannelError, OperationalError
from redis.exceptions import RedisError

from agentq.embedded import broker
from agentq.errors import ConfigError, UnavailableError
from agentq.limits import MAX_HOOKS_SECS
from agentq.rabbitmq_queues import MAX_PRIORITY, PriorityAMQP
from agentq.redis_broker import RedisQueues
from agentq.saving import OUTAGE_SECS
from agentq.wire import CALL_TASK, STEP_QUEUE, STEP_TASK, BatchMessage, CallMessage, StepMessage, WakeUp, physical

# What a publish raises while the broker is away, whichever the transport; AttributeError where another thread has just
# closed the connection.
BROKER_FAULTS = (OperationalError, ChannelError, RedisError, ConnectionError, OSError, AttributeError)

# Celery's limit, which kills the process, is for what nobody else has stopped, and is counted from the message on: what
# is finished may be saved for a minute while the database is away, a lost call is looked for at its destination before
# it is begun again, which may take as long as the tool, and there are hooks before it and after it.
HARD_GRACE_SECS = OUTAGE_SECS + 2 * MAX_HOOKS_SECS + 30.0

# What brokers call the ranks of wire.py. On Redis kombu takes what is smaller first, from lists that it polls in any
# case. RabbitMQ and the broker of files take what is larger first.
_SMALLER_FIRST: Mapping[int, int] = {-1: 0, 0: 3, 1: 6}
_LARGER_FIRST: Mapping[int, int] = {-1: MAX_PRIORITY, 0: 3, 1: 1}
_REDIS = ("redis", "sentinel")


def make_app(broker_url: str, *, queue: str = STEP_QUEUE, name: str = "agentq") -> Celery:
    """A Celery app that can send agentq's messages. Raises ConfigError for a broker URL nobody understands.

    JSON only, results are not stored, lost connections are retried briefly: the sweep sends again what gets lost.
    """
    amqp = PriorityAMQP if is_rabbitmq(broker_url) else None
    app = Celery(name, broker=broker_url, amqp=amqp, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_default_queue=queue,
        broker_connection_timeout=3.0,
        broker_transport_options=_transport_options(broker_url),
        task_publish_retry=True,
        task_publish_retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1},
        task_send_sent_event=False,
        worker_send_task_events=False,
    )
    try:
        app.connection_for_write().transport  # noqa: B018 - building it checks the URL
    except (KeyError, ImportError, ValueError) as error:
        raise ConfigError("AGENTQ_BROKER_URL is not a broker Celery knows: redis://… or amqp://…") from error
    return app


def is_rabbitmq(broker_url: str) -> bool:
    """Whether the broker, or each of a list, is spoken to in AMQP."""
    return all(url.strip().startswith(("amqp:", "amqps:", "pyamqp:")) for url in broker_url.split(";"))


def _transport_options(broker_url: str) -> dict[str, Any]:
    if broker_url.startswith("agentq+file:"):
        return dict(broker.connection_options(broker_url)["broker_transport_options"])
    if broker_url.startswith(_REDIS):
        # Without emulated acknowledgements kombu does not copy each message that a worker has into two more keys. What
        # they are for, messages of a worker that was killed, is the sweep's business here: it is sooner and knows more.
        return {"socket_connect_timeout": 3.0, "socket_timeout": 10.0, "ack_emulation": False}
    return {}


def check_broker(app: Celery) -> None:
    """Raises UnavailableError, naming the URL without its password, when the broker does not answer within seconds."""
    connection = app.connection_for_write()
    try:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=1, timeout=3)
    except Exception as error:
        raise _unavailable(connection.as_uri(), error) from error
    finally:
        connection.release()


def _unavailable(uri: str, error: Exception) -> UnavailableError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UnavailableError(f"the broker at {uri} cannot be used: {reason}; check AGENTQ_BROKER_URL", url=uri)


class CeleryDispatcher:
    """Sends each wake-up as the Celery task it is; queues get the app's prefix."""

    def __init__(self, app: Celery, *, queue: str = STEP_QUEUE) -> None:
        self._app = app
        self._prefix = queue
        self._redis = RedisQueues(app.connection_for_write) if _is_one_redis(app) else None
        self._priorities = _SMALLER_FIRST if app.conf.broker_write_url.startswith(_REDIS) else _LARGER_FIRST

    def send(self, wake_up: WakeUp) -> None:
        try:
            if isinstance(wake_up, BatchMessage):
                self.signature(wake_up).apply_async()
            else:
                self._publish(wake_up)
        except BROKER_FAULTS as error:
            raise _unavailable(self._app.connection_for_write().as_uri(), error) from error

    def _publish(self, wake_up: StepMessage | CallMessage) -> None:
        """What ``apply_async`` does in the end, at half its cost, on Redis a quarter: no routes, options or result.

        Who listens to Celery's signals of publishing, such as tracing, is told of all of it, and pays for kombu's way.
        """
        name, ids = _task(wake_up)
        queue = physical(wake_up.queue, self._prefix)
        priority = self._priorities[wake_up.priority]
        amqp = self._app.amqp
        message = amqp.create_task_message(
            uuid(),
            name,
            args=ids,
            kwargs={},
            argsrepr=repr(ids),
            kwargsrepr="{}",
            ignore_result=True,
            time_limit=_time_limit(wake_up),
        )
        if self._redis is not None and not (before_task_publish.receivers or after_task_publish.receivers):
            self._redis.put(queue, message, priority)
            return
        with self._app.producer_or_acquire() as producer:
            amqp.send_task_message(producer, name, message, queue=queue, priority=priority)

    def signature(self, wake_up: WakeUp) -> Any:
        """The Celery signature of a wake-up: a task, or a chord for a batch."""
        if isinstance(wake_up, BatchMessage):
            return chord([self.signature(lane) for lane in wake_up.lanes], self.signature(wake_up.body), app=self._app)
        name, ids = _task(wake_up)
        options = {
            "queue": physical(wake_up.queue, self._prefix),
            "time_limit": _time_limit(wake_up),
            "priority": self._priorities[wake_up.priority],
        }
        return self._app.signature(name, args=ids, immutable=True, **options)


def _is_one_redis(app: Celery) -> bool:
    """Of several brokers kombu takes the next where one is away."""
    urls = app.conf.broker_write_url
    return ";" not in urls and urlsplit(urls).scheme in ("redis", "rediss")


def _task(wake_up: StepMessage | CallMessage) -> tuple[str, tuple[Any, ...]]:
    if isinstance(wake_up, StepMessage):
        return STEP_TASK, (wake_up.run_id, wake_up.seq)
    return CALL_TASK, (wake_up.run_id, wake_up.seq, wake_up.index)


def _time_limit(wake_up: StepMessage | CallMessage) -> float | None:
    return None if wake_up.timeout_secs is None else 2 * wake_up.timeout_secs + HARD_GRACE_SECS
