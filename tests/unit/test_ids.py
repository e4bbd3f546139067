"""Ids sort by time, are their own in every thread, and go through URLs and file names."""

import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentq.ids import new_id


def test_an_id_is_a_prefix_and_26_plain_characters() -> None:
    assert re.fullmatch(r"run_[0-9a-hjkmnp-tv-z]{26}", new_id("run"))


def test_later_ids_sort_later(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = [0, 1, 31, 32, 1_700_000_000_000, 1_700_000_000_001, 2**48 - 1]
    made = []
    for moment in moments:
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: moment * 1_000_000)
        made.append(new_id("run"))
    assert made == sorted(made)


def test_ids_of_one_moment_differ_in_every_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: new_id("run"), range(2000)))
    assert len(set(made)) == 2000


def test_the_id_is_a_version_7_uuid() -> None:
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    value = 0
    for letter in new_id("x").removeprefix("x_"):
        value = value << 5 | alphabet.index(letter)
    assert value < 2**128
    assert value >> 76 & 0xF == 7
    assert value >> 62 & 0x3 == 2
    assert abs((value >> 80) - time.time_ns() // 1_000_000) < 10_000
