"""Transcripts this process has read or written lately: messages are never changed, so only new ones are read again."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentq.messages import AssistantMessage, Message, ToolMessage, UserMessage, media_of, with_media
from agentq.run import Snapshot
from agentq.storage import steps, threads
from agentq.storage.database import Database

# What a message takes in memory beside its text.
_EACH = 2_000
# Of all runs together, in characters; the run that was idle longest is forgotten first.
MAX_CHARS = 16_000_000


@dataclass
class _Known:
    """``earlier`` are the messages of earlier runs of the thread, None before they were read; ``number`` is that of the
    journal's row up to which all is known.
    """

    earlier: tuple[Message, ...] | None = None
    messages: dict[int, Message] = field(default_factory=dict)
    number: int = 0
    chars: int = 0


class Transcripts:
    """One a process; thread-safe."""

    def __init__(self, database: Database, *, max_chars: int = MAX_CHARS) -> None:
        self._database = database
        self._max_chars = max_chars
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def read(self, snapshot: Snapshot) -> tuple[Message, ...]:
        """All messages the run may see: those of earlier runs of its thread, then its own, and what joins them now."""
        count = snapshot.message_count - len(snapshot.joined)
        with self._lock:
            known = self._known.get(snapshot.run_id, _Known())
            own, earlier, number = dict(known.messages), known.earlier, known.number
        if len(own) < count and number >= snapshot.event_count:
            # A model never sees a transcript with gaps, whatever was thought to be known.
            number = 0
        if number < snapshot.event_count or earlier is None:
            with self._database.autocommit() as connection:
                if earlier is None and snapshot.thread_id is not None:
                    earlier = threads.earlier(connection, snapshot.run_id, snapshot.thread_id)
                new = steps.messages_after(connection, snapshot.run_id, number)
            own |= new
            self._keep(snapshot.run_id, earlier or (), new, snapshot.event_count)
        joined = (message for _, message in snapshot.joined)
        return (*(earlier or ()), *(own[at] for at in sorted(own) if at < count), *joined)

    def add(self, after: Snapshot, messages: Iterable[tuple[int, Message]], *, events: int) -> None:
        """Remember what was committed here, with so many events, of a run that was known here up to then."""
        with self._lock:
            known = self._known.get(after.run_id)
        if known is not None and known.number == after.event_count - events:
            new = {at: _without_bytes(message) for at, message in messages}
            self._keep(after.run_id, known.earlier or (), new, after.event_count)

    def forget(self, run_id: str) -> None:
        """Of a run that has ended."""
        with self._lock:
            self._drop(run_id)

    def _keep(self, run_id: str, earlier: tuple[Message, ...], new: dict[int, Message], number: int) -> None:
        with self._lock:
            known = self._known.pop(run_id, None) or _Known()
            before = known.chars
            if known.earlier is None:
                known.earlier = earlier
                known.chars += sum(_chars(message) for message in earlier)
            known.chars += sum(_chars(message) for at, message in new.items() if at not in known.messages)
            known.messages |= new
            known.number = max(known.number, number)
            self._known[run_id] = known
            self._chars += known.chars - before
            while self._chars > self._max_chars:
                self._drop(next(iter(self._known)))

    def _drop(self, run_id: str) -> None:
        known = self._known.pop(run_id, None)
        self._chars -= known.chars if known else 0


def _without_bytes(message: Message) -> Message:
    """As it is stored."""
    media = media_of(message)
    return with_media(message, tuple(one.with_data(None) for one in media)) if media else message


def _chars(message: Message) -> int:
    match message:
        case AssistantMessage():
            blocks = sum(len(str(block.data)) for block in message.reasoning)
            return _EACH + len(message.text) + sum(len(call.arguments) for call in message.calls) + blocks
        case ToolMessage():
            return _EACH * (1 + len(message.result.media)) + len(message.result.text)
        case UserMessage():
            return _EACH * (1 + len(message.media)) + len(message.text)
