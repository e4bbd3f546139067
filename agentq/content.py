"""Images and files of a conversation: what users and tools give, and what a transcript keeps of it, a reference."""

import base64
import binascii
import os
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote_to_bytes, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from agentq import media_types
from agentq.errors import ContentError
from agentq.text import clean

# What OpenAI takes of an image, and of all of a request; see docs/guide.md for what others take.
MAX_PART_BYTES = 20_000_000
MAX_MESSAGE_BYTES = 50_000_000
# What Anthropic takes in a request.
MAX_PARTS = 100
MAX_NAME_CHARS = 200
MAX_URL_CHARS = 8_000


# The context of a dump whose reader gets nothing but the dump.
WITHOUT_MEDIA = {"agentq_without_media": True}


class _Media(BaseModel):
    """An image or a file as a transcript has it: by its SHA-256 where it is stored, else by its URL.

    ``at`` is its place: behind so many characters of the message's text. ``data`` is None where the bytes are not at
    hand; ``Client.read`` gets them.
    """

    model_config = ConfigDict(frozen=True)

    kind: Literal["image", "file"]
    media_type: str = ""
    name: str = ""
    size: int = 0
    sha256: str = Field("", pattern="^([0-9a-f]{64})?$")
    url: str = ""
    at: int = 0
    _data: bytes | None = PrivateAttr(default=None)

    @classmethod
    def from_bytes(cls, data: bytes, *, media_type: str | None = None, name: str | None = None) -> Self:
        """Of at most 20 MB. The media type is told by how the bytes begin or how ``name`` ends, where it is not given.

        Raises ContentError for what is empty, too large, or of no known type.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise _refused(cls, name, "wrong_type", f"bytes are wanted, not {type(data).__name__}")
        return cls._of(bytes(data), media_type, name)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], *, media_type: str | None = None, name: str | None = None) -> Self:
        """Read now, by this process; its name is the file's. Raises ContentError as ``from_bytes``, and for no file."""
        where = Path(path)
        name = where.name if name is None else name
        try:
            if not where.is_file():
                problem = "it is no file" if where.exists() else f"there is no file {str(where)!r}"
                raise _refused(cls, name, "not_found", f"{problem}; give the path of one that this process can read")
            if (size := where.stat().st_size) > MAX_PART_BYTES:
                raise _too_large(cls, name, size)
            data = where.read_bytes()
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise _refused(cls, name, "unreadable", f"{str(where)!r} cannot be read: {why}") from error
        return cls._of(data, media_type, name)

    @classmethod
    def from_url(cls, url: str, *, media_type: str | None = None, name: str | None = None) -> Self:
        """Handed to the provider as it is, which must be able to reach it: it is never fetched here.

        A ``data:`` URL is taken for the bytes that it holds. Raises ContentError for a URL of another kind.
        """
        name = _checked_name(cls, name)
        if _is_data(url):
            found, data = _inside(cls, url, name)
            return cls._of(data, media_type or found, name)
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and len(url) <= MAX_URL_CHARS
        except (ValueError, AttributeError, TypeError):
            is_good = False
        if not is_good or clean(url) != url or any(character.isspace() for character in url):
            problem = f"its URL is an http(s) one of at most {MAX_URL_CHARS:,} characters"
            raise _refused(cls, name, "bad_url", problem)
        if parts.username or parts.password:
            raise _refused(cls, name, "bad_url", "its URL holds a password, which would be stored; give one without")
        path_name = parts.path.rpartition("/")[2]
        given = _checked_type(cls, media_type, name) or media_types.by_name(name or path_name) or ""
        if issubclass(cls, Image) and not given.startswith("image/"):
            # A script's name says nothing of the image that it makes.
            given = ""
        return cls(kind=_kind(cls), media_type=given, name=name, url=url)

    @classmethod
    def _of(cls, data: bytes, media_type: str | None, name: str | None) -> Self:
        name = _checked_name(cls, name)
        if not data:
            raise _refused(cls, name, "empty", "it has no bytes; leave it out, or give one that has")
        if len(data) > MAX_PART_BYTES:
            raise _too_large(cls, name, len(data))
        found = _type_of(cls, data, _checked_type(cls, media_type, name), name)
        made = cls(kind=_kind(cls), media_type=found, name=name, size=len(data), sha256=sha256(data).hexdigest())
        return made._with(data)

    @property
    def data(self) -> bytes | None:
        return self._data

    def with_data(self, data: bytes | None) -> Self:
        """The same with its bytes at hand, or without them. Raises ContentError for bytes that are not its own."""
        if data is not None and data is not self._data and sha256(data).hexdigest() != self.sha256:
            words = f"these are not its bytes; make another with {type(self).__name__}.from_bytes"
            raise _refused(type(self), self.name, "other_bytes", words)
        return self._with(data)

    def _with(self, data: bytes | None) -> Self:
        if data is self._data:
            return self
        copy = self.model_copy()
        copy._data = data
        return copy

    def placed(self, at: int) -> Self:
        """The same at another place of its message."""
        return self if at == self.at else self.model_copy(update={"at": at})

    def __str__(self) -> str:
        """For people and models, without its bytes."""
        size = shown_size(self.size) if self.size else self.url and urlsplit(self.url).hostname
        words = (f"{self.kind} {self.name}".strip(), self.media_type, size)
        return f"[{', '.join(word for word in words if word)}]"

    @model_serializer(mode="wrap")
    def _dumped(self, form: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        if info.context and WITHOUT_MEDIA.items() <= info.context.items():
            raise TypeError(f"{self} has no JSON form; a tool may return it by itself, or in a list")
        return dict(form(self))

    def __eq__(self, other: object) -> bool:
        # Whether the bytes are at hand makes no difference.
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((self.kind, self.sha256, self.url, self.name, self.at))


class Image(_Media):
    kind: Literal["image"]


class File(_Media):
    kind: Literal["file"]


Media = Annotated[Image | File, Field(discriminator="kind")]
# What a run may be enqueued with.
Content = str | Image | File | Sequence[str | Image | File]


def with_stored(media: Image | File, data: bytes) -> Image | File:
    """The same with the bytes that are stored under its hash, which need no look at each use."""
    return media._with(data)


def shown_size(size: int) -> str:
    """For people: ``812 bytes``, ``12 kB``, ``3.4 MB``."""
    if size < 1_000:
        return f"{size} bytes"
    return f"{size / 1_000:.0f} kB" if size < 999_500 else f"{size / 1_000_000:.1f} MB"


# ---------------------------------------------------------------------------------------------- a message's parts


def joined(parts: Iterable[str | Image | File]) -> tuple[str, tuple[Image | File, ...]]:
    """The texts of a message as one, a line each, and its media with their places in it."""
    text, media = "", list[Image | File]()
    for part in parts:
        if not isinstance(part, str):
            media.append(part.placed(len(text)))
        elif part:
            text += f"\n{part}" if text else part
    return text, tuple(media)


def split(text: str, media: Sequence[Image | File]) -> list[str | Image | File]:
    """The parts again, in order; without texts that have no visible character."""
    parts: list[str | Image | File] = []
    begin = 0
    for one in sorted(media, key=lambda one: one.at):
        parts.append(_without_break(text[begin : one.at], begin))
        parts.append(one)
        begin = max(begin, one.at)
    parts.append(_without_break(text[begin:], begin))
    return [part for part in parts if not isinstance(part, str) or part.strip()]


def _without_break(text: str, begin: int) -> str:
    """A later piece without the line break that ``joined`` put before it."""
    return text.removeprefix("\n") if begin else text


def check_together(media: Sequence[Image | File], what: str) -> None:
    """Raises ContentError where they are too many, or too large, for one message."""
    if len(media) > MAX_PARTS:
        problem = f"{what} has {len(media)} images and files; give {MAX_PARTS} at most"
        raise ContentError(problem, problem="too_many")
    if (size := sum(one.size for one in media)) > MAX_MESSAGE_BYTES:
        problem = f"the images and files of {what} are {shown_size(size)} together"
        raise ContentError(
            f"{problem}; {shown_size(MAX_MESSAGE_BYTES)} is the most, so send fewer", problem="too_large"
        )


# ---------------------------------------------------------------------------------------------- what is given


def _kind(cls: type[_Media]) -> Any:
    return "image" if issubclass(cls, Image) else "file"


def _refused(cls: type[_Media], name: str | None, problem: str, words: str) -> ContentError:
    part = f"{_kind(cls)} {name!r}" if name else f"the {_kind(cls)}"
    return ContentError(f"{part}: {words}", part=name or "", problem=problem)


def _too_large(cls: type[_Media], name: str | None, size: int) -> ContentError:
    words = f"it is {shown_size(size)}, and {shown_size(MAX_PART_BYTES)} is the most"
    return _refused(cls, name, "too_large", f"{words}; make it smaller, or give a URL of it")


def _checked_name(cls: type[_Media], name: str | None) -> str:
    if name is None:
        return ""
    if len(name := str(name)) > MAX_NAME_CHARS:
        raise _refused(cls, None, "bad_name", f"its name is a text of at most {MAX_NAME_CHARS} characters")
    # It stands in one line with others, wherever it is shown.
    return " ".join(clean(name).split())


def _checked_type(cls: type[_Media], media_type: str | None, name: str) -> str | None:
    if media_type is None:
        return None
    given = media_types.normal(str(media_type))
    if given is None:
        raise _refused(cls, name, "unknown_media_type", f"{media_type!r} is no media type, such as 'image/png'")
    if issubclass(cls, Image) and not given.startswith("image/"):
        raise _refused(cls, name, "unknown_media_type", f"{given} is no type of images; use File for it")
    return given


def _type_of(cls: type[_Media], data: bytes, given: str | None, name: str) -> str:
    found = media_types.by_beginning(data)
    if issubclass(cls, Image):
        return _image_type(cls, found, given, name)
    named = None if given or found else media_types.by_name(name)
    media_type = given or found or named
    if media_type is not None and not media_types.may_be(data, media_type):
        words = f"it does not begin like {media_type}; is it whole, and is it that?"
        raise _refused(cls, name, "unknown_media_type", words)
    text = media_types.as_text(data)
    if media_type is not None and media_types.is_text(media_type) and text is None:
        words = f"it is {media_type}, but no UTF-8; encode it so, or say with media_type= what it is"
        raise _refused(cls, name, "not_text", words)
    if media_type is None and text is None:
        words = "nobody can tell what it is; say it with media_type=, such as 'application/zip'"
        raise _refused(cls, name, "unknown_media_type", words)
    # Each machine takes the endings of code for something else.
    is_code = named is not None and not media_types.is_sure(named) and media_types.is_readable(text)
    return "text/plain" if media_type is None or is_code else media_type


def _image_type(cls: type[_Media], found: str | None, given: str | None, name: str) -> str:
    """Providers refuse an image that is called what it is not."""
    if found is not None and not found.startswith("image/"):
        raise _refused(cls, name, "unknown_media_type", f"it is {found}, no image; use File for it")
    if found is not None and given not in (None, found):
        raise _refused(cls, name, "unknown_media_type", f"it is {found}, not {given}; leave media_type= out")
    media_type = found or given or media_types.by_name(name)
    if media_type is None or not media_type.startswith("image/"):
        words = "it begins like no known image; say with media_type= what it is, or use File"
        raise _refused(cls, name, "unknown_media_type", words)
    if found is None and media_type in media_types.IMAGES:
        raise _refused(cls, name, "unknown_media_type", f"it does not begin like {media_type}; is it whole?")
    return media_type


def _is_data(url: object) -> bool:
    return isinstance(url, str) and url[:5].lower() == "data:"


def _inside(cls: type[_Media], url: str, name: str | None) -> tuple[str | None, bytes]:
    """The type and the bytes of a ``data:`` URL."""
    head, comma, body = url[5:].partition(",")
    media_type, *options = head.split(";")
    try:
        if not comma:
            raise ValueError
        is_base64 = bool(options) and options[-1].strip().lower() == "base64"
        data = unquote_to_bytes(body)
        if is_base64:
            # Browsers take it with line breaks, too.
            data = base64.b64decode(b"".join(data.split()), validate=True)
    except (ValueError, binascii.Error):
        raise _refused(cls, name, "bad_url", "its data: URL cannot be read; give the bytes instead") from None
    return media_type or None, data
