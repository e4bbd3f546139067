"""Images and files this process has read lately: what a hash stands for never changes, so it is not read again."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from agentq.content import MAX_MESSAGE_BYTES, File, Image, shown_size, with_stored
from agentq.errors import ContentError
from agentq.messages import Message, media_of, with_media
from agentq.storage import blobs
from agentq.storage.database import Database

# Of all that is kept; what was used longest ago is forgotten first.
MAX_BYTES = 64_000_000


class BlobCache:
    """One a process; thread-safe."""

    def __init__(self, database: Database, *, max_bytes: int = MAX_BYTES) -> None:
        self._database = database
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def load(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with the bytes of their images and files, read in one statement where they are not known here.

        Raises ContentError for more than a request may hold; ContentMissingError.
        """
        stored = [one for message in messages for one in media_of(message) if one.sha256]
        if not stored:
            return messages
        # What a request holds twice is read once, and sent twice.
        if (size := sum(one.size for one in stored)) > MAX_MESSAGE_BYTES:
            raise ContentError(
                f"the images and files of the conversation are {shown_size(size)} together, and "
                f"{shown_size(MAX_MESSAGE_BYTES)} is the most for one request; leave some out with a before_model "
                "hook, or begin a new thread",
                problem="too_large",
            )
        wanted = {one.sha256: one for one in stored}
        found = {sha256: one.data for sha256, one in wanted.items() if one.data is not None} | self._kept(wanted)
        if missing := [sha256 for sha256 in wanted if sha256 not in found]:
            with self._database.autocommit() as connection:
                read = blobs.load(connection, missing)
            self._keep(read)
            found |= read
        return [_loaded(message, found) for message in messages]

    def add(self, media: Iterable[Image | File]) -> None:
        """Remember what was stored here."""
        self._keep({one.sha256: one.data for one in media if one.sha256 and one.data is not None})

    def _kept(self, wanted: dict[str, Image | File]) -> dict[str, bytes]:
        with self._lock:
            for sha256 in (found := wanted.keys() & self._known.keys()):
                self._known.move_to_end(sha256)
            return {sha256: self._known[sha256] for sha256 in found}

    def _keep(self, read: dict[str, bytes]) -> None:
        if not read:
            return
        with self._lock:
            for sha256, data in read.items():
                self._bytes += len(data) - len(self._known.pop(sha256, b""))
                self._known[sha256] = data
            while self._bytes > self._max_bytes:
                _, data = self._known.popitem(last=False)
                self._bytes -= len(data)


def _loaded(message: Message, found: dict[str, bytes]) -> Message:
    media = media_of(message)
    if not media:
        return message
    return with_media(message, tuple(with_stored(one, found[one.sha256]) if one.sha256 else one for one in media))
