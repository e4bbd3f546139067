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
from agentq.text import clean

logger = logging.getLogger(__name__)

# Sooner than people read, and seldom enough that a thousand words are some twenty rows.
FLUSH_SECS = 0.15


class Stream:
    """One attempt at a reply. Told of its deltas in the step's thread, asked for them in the thread that saves them.

    A piece that is None takes back all that is before it.
    """

    def __init__(self, streams: "Streams", run_id: str, token: UUID, seq: int) -> None:
        self._streams = streams
        self._lock = threading.Lock()
        self._pieces: list[Delta | None] = []
        self._saved_pieces = 0
        self._seq = seq
        self.run_id = run_id
        self.token = token
        self.saved = 0  # events

    def add(self, delta: Delta) -> None:
        """Show a piece of the reply; see ``ModelRequest.on_delta``."""
        self._put(delta)

    def settle(self, text: str | None) -> None:
        """Take back what was shown where the reply says something else, and show that (None: there is no reply)."""
        shown = self._shown()
        if shown and clean("".join(piece.text for piece in shown if piece.kind == "text")) != text:
            self.reset()
            if text:
                self.add(Delta("text", text))

    def reset(self) -> None:
        """Take back what was shown, here or by an attempt that was lost."""
        self._put(None)

    def _shown(self) -> list[Delta]:
        with self._lock:
            last = max((at for at, piece in enumerate(self._pieces) if piece is None), default=-1)
            return [piece for piece in self._pieces[last + 1 :] if piece is not None]

    def _put(self, piece: Delta | None) -> None:
        with self._lock:
            self._pieces.append(piece)
        self._streams.wake()

    @property
    def is_pending(self) -> bool:
        """Whether there is something to save."""
        return len(self._pieces) > self._saved_pieces

    def pending(self) -> tuple[int, list[NewEvent]]:
        """The pieces that are not saved yet, as events, and how many pieces there are then in all."""
        with self._lock:
            pending, count = self._pieces[self._saved_pieces :], len(self._pieces)
        return count, [self._event(delta) for delta in _joined(pending)]

    def is_saved(self, pieces: int, events: int) -> None:
        """So many are saved now, the last of them in so many events."""
        with self._lock:
            self._saved_pieces = pieces
        self.saved += events

    def show_again(self) -> None:
        """Nobody knows what was saved: all of it is taken back and shown once more."""
        shown = self._shown()
        with self._lock:
            self._pieces, self._saved_pieces = [None, *shown], 0

    def end(self) -> list[NewEvent]:
        """The events that are still to be saved, with the step's own; nothing else saves any after this."""
        return self._streams.end(self)

    def _event(self, delta: Delta | None) -> NewEvent:
        if delta is None:
            return NewEvent("model.reset", {"seq": self._seq})
        data: dict[str, Any] = {"seq": self._seq, "kind": delta.kind, "text": clean(delta.text)}
        if delta.kind == "arguments":
            data |= {"call": delta.call, "tool": clean(delta.name or "")}
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
            return stream.pending()[1]

    def _work(self) -> None:
        try:
            while self._is_at_work():
                self._save()
                with self._changed:
                    self._changed.wait_for(lambda: not self._streams, FLUSH_SECS)
        except Exception:
            # What is not shown now goes with the commits of the steps; the next reply begins with a new thread.
            logger.exception("replies that are being written are not shown")
            with self._changed:
                self._thread = None

    def _is_at_work(self) -> bool:
        """Wait for something to save; False when the last reply has ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._streams or any(each.is_pending for each in self._streams))
            if not self._streams:
                self._thread = None
            return bool(self._streams)

    def _save(self) -> None:
        """What has come, of all replies; of those that are not ours any more it is never saved."""
        with self._saving:
            with self._changed:
                found = {each.run_id: (each, *each.pending()) for each in self._streams if each.is_pending}
            if not found:
                return
            written = {run_id: Written(each.token, events) for run_id, (each, _, events) in found.items()}
            try:
                with self._database.autocommit() as connection:
                    saved = deltas.write(connection, written)
            except UnavailableError as error:
                logger.debug("what was streamed is saved later: %s", error)
                for stream, _, _ in found.values():
                    stream.show_again()
                return
            for run_id in saved:
                stream, pieces, events = found[run_id]
                stream.is_saved(pieces, len(events))
