"""Server-sent events from the pieces of a body, however they are cut. (WHATWG HTML, section 9.2.)"""

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_END_OF_LINE = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True)
class ServerEvent:
    """One event; ``name`` is "" where none was given."""

    name: str
    data: str


def server_events(pieces: Iterable[bytes]) -> Iterator[ServerEvent]:
    """The events in order. A last one without the blank line behind it counts too: some servers leave that out."""
    name, data = "", list[str]()
    for line in _lines(pieces):
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
        else:
            if data:
                yield ServerEvent(name, "\n".join(data))
            name, data = "", []
    if data:
        yield ServerEvent(name, "\n".join(data))


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
    # Pieces of a long line are joined once, at its end: events of megabytes come in small pieces.
    open_line: list[str] = []
    for piece in pieces:
        # A \r at the end may be the first half of \r\n.
        text = (open_line.pop() if open_line and open_line[-1] == "\r" else "") + decoder.decode(piece)
        held = text.endswith("\r")
        first, *lines = _END_OF_LINE.split(text[:-1] if held else text)
        open_line.append(first)
        for line in lines:
            yield "".join(open_line)
            open_line = [line]
        if held:
            open_line.append("\r")
    if rest := "".join(open_line) + decoder.decode(b"", final=True):
        yield from _END_OF_LINE.split(rest)
