"""A thousand runs on one key that is limited, on several workers, against a server that counts its calls."""

import threading
import time
from pathlib import Path

import pytest

from tests.providers.fake_server import Answer, Asked, response, serve
from tests.waiting import eventually
from tests.workers.fleet import Fleet

AGENTS = Path(__file__).with_name("agents_on_a_limited_key.py")
ANSWER = {"choices": [{"message": {"content": "done"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 9}}
LIMITED = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}


class Bucket:
    """So many calls a second, and so many at once; the rest is refused."""

    def __init__(self, per_second: float, at_once: int) -> None:
        self._per_second, self._at_once = per_second, at_once
        self._left, self._filled_at = float(at_once), time.monotonic()
        self._lock = threading.Lock()
        self.answered = self.refused = 0

    def __call__(self, asked: Asked) -> Answer:
        with self._lock:
            now = time.monotonic()
            self._left = min(self._at_once, self._left + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            if self._left < 1:
                self.refused += 1
                return response(LIMITED, 429, retry_after="1")
            self._left -= 1
            self.answered += 1
        return response(ANSWER)


@pytest.mark.long
def test_a_thousand_runs_on_a_limited_key_cost_few_refused_calls_and_all_end(
    redis_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, bucket, runs = redis_fleet, Bucket(per_second=25, at_once=10), 1000
    with serve(bucket) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test-key")
        fleet.agents = AGENTS
        for _ in range(2):
            fleet.start("steps", concurrency=8)
        handles = fleet.client.enqueue_many("limited", [f"question {number}" for number in range(runs)])
        eventually(lambda: bucket.answered >= runs, within=240, what="every run is answered")
        for handle in handles:
            eventually(lambda handle=handle: handle.status() == "completed", within=30)  # type: ignore[misc]
    assert bucket.answered == runs
    # Those that were under way when the first was refused, and now and then one that finds out how many are too many.
    assert bucket.refused < runs / 20
