"""Replies on their way to who watches: what a model writes becomes events of its run, a few times a second.

One thread a process saves what came for all its runs at once, from the first reply that is watched to the last. What is
not saved when a reply ends goes with the commit of its step, so that the events of a reply are all there, or the reply
is not.
"""

import logging
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from agentq.errors import UnavailableError
from agentq.providers.base import Delta
from agentq.storage import deltas
from agentq.storage.database import Database
from agentq.storage.deltas import Written
from agentq.storage.journal import NewEvent

logger = logging.getLogger(__name__)

# Sooner than people read, and seldom enough that a thousand words are some twenty rows.
FLUSH_SECS = 0.15


class Stream:
    """One attempt at a reply. Told of its deltas in the step's thread, asked for them in the thread that saves them."""

    def __init__(self, streams: "Streams", run_id: str, token: UUID, seq: int) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._pending: list[Delta | None] = []
        self._shown: list[str] = []
        self._seq = seq
        self.run_id = run_id
        self.token = token
        self.saved = 0  # events

    def add(self, delta: Delta) -> None:
        """Show a piece of the reply; see ``ModelRequest.on_delta``."""
        # Of all kinds, so that there is something to take back; only the text is compared.
        self._shown.append(delta.text if delta.kind == "text" else "")
        self._put(delta)

    def settle(self, text: str | None) -> None:
        """Take back what was shown where the reply says something else (None: where there is no reply)."""
        if self._shown and "".join(self._shown) != text:
            self.reset()

    def reset(self) -> None:
        """Take back what was shown, here or by an attempt that was lost."""
        self._shown.clear()
        self._put(None)

    def _put(self, delta: Delta | None) -> None:
        with self._lock:
            self._pending.append(delta)
        self._streams.wake()

    def pending(self) -> tuple[int, list[NewEvent]]:
        """How many pieces are not saved yet, and the events that say them."""
        with self._lock:
            pending = list(self._pending)
        return len(pending), [self._event(delta) for delta in _joined(pending)]

    def drop(self, pieces: int, events: int) -> None:
        """So many are saved."""
        with self._lock:
            del self._pending[:pieces]
        self.saved += events

    def end(self) -> list[NewEvent]:
        """The events that are still to be saved, with the step's own; nothing else saves any after this."""
        return self._streams.end(self)

    def _event(self, delta: Delta | None) -> NewEvent:
        if delta is None:
            return NewEvent("model.reset", {"seq": self._seq})
        data: dict[str, Any] = {"seq": self._seq, "kind": delta.kind, "text": delta.text}
        if delta.kind == "arguments":
            data |= {"call": delta.call, "tool": delta.name}
        return NewEvent("model.delta", data)


def _joined(pieces: list[Delta | None]) -> Iterator[Delta | None]:
    """Neighbours of the same kind, and of the same call, as one."""
    texts: list[str] = []
    last: Delta | None = None
    for piece in pieces:
        if piece and last and (piece.kind, piece.call, piece.name) == (last.kind, last.call, last.name):
            texts.append(piece.text)
            continue
        if last:
            yield Delta(last.kind, "".join(texts), last.call, last.name)
        if piece is None:
            yield None
        last, texts = piece, [piece.text] if piece else []
    if last:
        yield Delta(last.kind, "".join(texts), last.call, last.name)


class Streams:
    """The replies under way in this process. Safe over a fork: a child starts with none."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._streams: set[Stream] = set()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._saving = threading.Lock()

    def begin(self, run_id: str, token: UUID, seq: int, *, is_again: bool) -> Stream:
        """A reply to be shown; ``is_again`` where an attempt at it may have been shown before. To be ended."""
        stream = Stream(self, run_id, token, seq)
        with self._changed:
            self._streams.add(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="agentq-streams", daemon=True)
                self._thread.start()
        if is_again:
            stream.reset()
        return stream

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def end(self, stream: Stream) -> list[NewEvent]:
        with self._saving:
            with self._changed:
                self._streams.discard(stream)
                self._changed.notify()
            pieces, events = stream.pending()
            stream.drop(pieces, 0)
            return events

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._streams or any(each.pending()[0] for each in self._streams))
                if not self._streams:
                    self._thread = None
                    return
            self._save()
            with self._changed:
                self._changed.wait_for(lambda: not self._streams, FLUSH_SECS)

    def _save(self) -> None:
        """What has come, of all replies; of those that are not ours any more it is never saved."""
        with self._saving:
            with self._changed:
                found = {each.run_id: (each, *each.pending()) for each in self._streams}
            written = {run_id: Written(each.token, events) for run_id, (each, _, events) in found.items() if events}
            if not written:
                return
            try:
                with self._database.autocommit() as connection:
                    saved = deltas.write(connection, written)
            except UnavailableError as error:
                logger.debug("what was streamed is saved later: %s", error)
                return
            for run_id in saved:
                stream, pieces, events = found[run_id]
                stream.drop(pieces, len(events))
