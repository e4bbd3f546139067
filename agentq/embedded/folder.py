"""Queues and bindings as files in one folder, shared by every process of a machine without a broker.

A message is one file in the folder of its queue, or in the one for its more or less urgent messages, named by the time
it was put. It is written elsewhere in the same
tree and renamed, so no reader meets half a message, and it is claimed by a rename, so only one reader gets it.
"""

import hashlib
import json
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import quote
from uuid import uuid4

Binding = tuple[str, str, str]  # routing key, pattern, queue
Urgency = Literal["high", "normal", "low"]
URGENCIES: tuple[Urgency, ...] = ("high", "normal", "low")


class MessageFolder:
    def __init__(self, root: Path) -> None:
        self._queues = root / "queues"
        self._exchanges = root / "exchanges"
        self._unread = root / "written"
        self._taken = root / "taken"
        # What the last listing of a queue showed and we have not tried yet: one listing serves many takes.
        self._listed: dict[tuple[str, Urgency], deque[str]] = {}
        for folder in (self._queues, self._exchanges, self._unread, self._taken):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, queue: str, text: str, urgency: Urgency = "normal") -> None:
        self._write(self._queue(queue, urgency) / f"{time.time_ns():020d}-{uuid4().hex}", text)

    def take(self, queue: str) -> str | None:
        """The oldest of the most urgent messages, removed from the queue; None if there is none.

        Several readers each get others.
        """
        taken = (self._take(queue, urgency) for urgency in URGENCIES)
        return next((text for text in taken if text is not None), None)

    def _take(self, queue: str, urgency: Urgency) -> str | None:
        listed = self._listed.setdefault((queue, urgency), deque())
        if not listed:
            listed.extend(sorted(self._messages(queue, urgency)))
        while listed:
            name = listed.popleft()
            claim = self._taken / name
            try:
                (self._queue(queue, urgency) / name).rename(claim)
            except FileNotFoundError:  # another reader has it
                continue
            text = claim.read_text()
            claim.unlink()
            return text
        return None

    def size(self, queue: str) -> int:
        return sum(len(self._messages(queue, urgency)) for urgency in URGENCIES)

    def purge(self, queue: str) -> int:
        """Remove the messages of the queue and say how many they were."""
        count = 0
        for urgency in URGENCIES:
            for name in self._messages(queue, urgency):
                with suppress(FileNotFoundError):
                    (self._queue(queue, urgency) / name).unlink()
                    count += 1
        return count

    def delete(self, queue: str) -> None:
        self.purge(queue)
        (self._queue(queue) / ".expires").unlink(missing_ok=True)
        for urgency in URGENCIES:
            self._listed.pop((queue, urgency), None)
            with suppress(OSError):  # somebody put a message meanwhile, or it never was
                self._queue(queue, urgency).rmdir()

    def keep_alive(self, queue: str, seconds: float) -> bool:
        """Let the queue expire so many seconds from now; False if it had to be made, by which it lost its bindings."""
        mark = self._queue(queue) / ".expires"
        expiry = time.time() + seconds
        try:
            os.utime(mark, (expiry, expiry))
        except FileNotFoundError:
            self._write(mark, "")
            os.utime(mark, (expiry, expiry))
            return False
        return True

    def bind(self, exchange: str, binding: Binding) -> None:
        self._write(self._binding(exchange, binding), json.dumps(binding))

    def unbind(self, exchange: str, binding: Binding) -> None:
        self._binding(exchange, binding).unlink(missing_ok=True)
        with suppress(OSError):  # others are bound to it
            self._exchange(exchange).rmdir()

    def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of the exchange, without those of queues that have expired: they are removed."""
        found = []
        for path in _entries(self._exchange(exchange)):
            with suppress(FileNotFoundError):
                routing_key, pattern, queue = json.loads((self._exchange(exchange) / path).read_text())
                if self._has_expired(queue):
                    self.delete(queue)
                    self.unbind(exchange, (routing_key, pattern, queue))
                else:
                    found.append((routing_key, pattern, queue))
        return found

    def _has_expired(self, queue: str) -> bool:
        try:
            return (self._queue(queue) / ".expires").stat().st_mtime < time.time()
        except FileNotFoundError:
            return False

    def _messages(self, queue: str, urgency: Urgency) -> list[str]:
        return [name for name in _entries(self._queue(queue, urgency)) if not name.startswith(".")]

    def _queue(self, queue: str, urgency: Urgency = "normal") -> Path:
        end = "" if urgency == "normal" else f".{urgency}"
        return self._queues / f"{quote(queue, safe='@')}.queue{end}"

    def _exchange(self, exchange: str) -> Path:
        return self._exchanges / f"{quote(exchange, safe='')}.exchange"

    def _binding(self, exchange: str, binding: Binding) -> Path:
        return self._exchange(exchange) / hashlib.sha256(json.dumps(binding).encode()).hexdigest()

    def _write(self, path: Path, text: str) -> None:
        fresh = self._unread / uuid4().hex
        fresh.write_text(text)
        while True:
            try:
                fresh.replace(path)
            except FileNotFoundError:  # the folder is not there yet, or not any more
                path.parent.mkdir(mode=0o700, exist_ok=True)
            else:
                return


def _entries(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
