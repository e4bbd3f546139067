"""The tests' own services: what one test gets, no other test and no person has."""

import os
from collections.abc import Callable
from urllib.parse import urlsplit

import kombu
import psycopg
import pytest
import redis

from tests import services
from tests.conftest import url_of
from tests.services import Service, Services, Unusable


def test_a_database_is_empty_speaks_utf8_and_is_gone_afterwards(service_urls: Services, database_url: str) -> None:
    with services.new_database(service_urls) as url:
        assert url != database_url
        with psycopg.connect(url) as connection:
            assert connection.execute("show server_encoding").fetchone() == ("UTF8",)
            assert connection.execute("select count(*) from pg_stat_user_tables").fetchone() == (0,)
    with psycopg.connect(str(service_urls.postgres.url)) as connection:
        name = urlsplit(url).path.strip("/")
        assert connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is None


def test_a_session_can_have_its_databases_behind_pgbouncer(service_urls: Services) -> None:
    url_of(service_urls.postgres)
    with services.through_pgbouncer(service_urls) as pooled, services.new_database(pooled) as url:
        assert urlsplit(url).netloc == urlsplit(str(pooled.pooled)).netloc != urlsplit(str(pooled.postgres.url)).netloc
        with psycopg.connect(url) as connection:
            assert connection.execute("select current_database()").fetchone() == (urlsplit(url).path.strip("/"),)


def test_a_test_may_have_several_databases(new_database_url: Callable[[], str]) -> None:
    assert new_database_url() != new_database_url()


def test_a_database_that_a_test_forgot_is_found_and_dropped(service_urls: Services, database_url: str) -> None:
    other = Services(token=f"{service_urls.token}x", **{name: getattr(service_urls, name) for name in services.NAMES})
    with services.new_database(other), psycopg.connect(database_url) as connection:
        (name,) = services.drop_forgotten_databases(other)
        assert name.startswith(f"agentq_test_{other.token}_")
        assert connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is None


def test_no_two_hold_the_same_redis_database(service_urls: Services, redis_url: str) -> None:
    with services.own_redis_database(service_urls) as one, services.own_redis_database(service_urls) as other:
        assert len({one, other, redis_url}) == 3


def test_a_redis_database_with_data_in_it_is_not_touched(service_urls: Services) -> None:
    url_of(service_urls.redis)
    with services.own_redis_database(service_urls) as url:
        number = int(url.rpartition("/")[2])
    with redis.Redis.from_url(url) as client:
        client.set("orders", "77")
        try:
            with pytest.raises(Unusable), services.own_redis_database(service_urls, numbers=[number]):
                pass
            assert client.get("orders") == b"77"
        finally:
            client.delete("orders")


def test_a_redis_database_that_somebody_is_connected_to_is_not_taken(service_urls: Services) -> None:
    url_of(service_urls.redis)
    with services.own_redis_database(service_urls) as url:
        number = int(url.rpartition("/")[2])
    with redis.Redis.from_url(url) as client:
        client.ping()
        with pytest.raises(Unusable), services.own_redis_database(service_urls, numbers=[number]):
            pass


def test_redis_is_empty_but_for_our_mark(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.keys() == [services.REDIS_MARK.encode()]


def test_every_broker_takes_a_message(broker_url: str, queue_prefix: str) -> None:
    with kombu.Connection(broker_url) as connection:
        queue = kombu.Queue(queue_prefix, kombu.Exchange(queue_prefix, type="direct"), routing_key=queue_prefix)
        with connection.SimpleQueue(queue) as simple:
            simple.put({"hello": "there"})
            message = simple.get(timeout=5)
            message.ack()
    assert message.payload == {"hello": "there"}


def test_queues_and_exchanges_are_deleted(service_urls: Services, queue_prefix: str) -> None:
    url = url_of(service_urls.rabbitmq)
    with kombu.Connection(url) as connection:
        exchange = kombu.Exchange(queue_prefix, type="direct")
        kombu.Queue(queue_prefix, exchange, channel=connection).declare()
        services.delete_queues(url, [queue_prefix])
        for gone in (kombu.Queue(queue_prefix, channel=connection).queue_declare, exchange(connection).declare):
            with pytest.raises(connection.channel_errors, match="NOT_FOUND"):
                gone(passive=True)


def test_a_configured_service_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(services.DATABASE_VARIABLE, "postgresql://nobody@127.0.0.1:1/x")
    monkeypatch.setenv(services.REDIS_VARIABLE, "redis://127.0.0.1:1")
    monkeypatch.setenv(services.RABBITMQ_VARIABLE, "amqp://guest:wrong@127.0.0.1:1//")
    found = services.find(stand_in=None)
    assert [service.name for service in found.left_out] == ["Postgres", "Redis", "RabbitMQ"]
    assert found.line() == (
        "services: none; left out: Postgres: not reachable (from AGENTQ_TEST_DATABASE_URL), "
        "Redis: not reachable (from AGENTQ_TEST_REDIS_URL), RabbitMQ: not reachable (from AGENTQ_TEST_RABBITMQ_URL)"
    )


def test_what_was_found_reaches_the_workers_whole(service_urls: Services) -> None:
    assert Services.load(service_urls.dump()) == service_urls
    assert isinstance(service_urls.postgres, Service)


def test_no_setting_of_the_shell_reaches_a_test() -> None:
    ours = [name for name in os.environ if name.startswith("AGENTQ_") and not name.startswith("AGENTQ_TEST_")]
    assert ours == []
    assert "OPENAI_API_KEY" not in os.environ
