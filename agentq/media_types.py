"""What kind of data bytes are: by how they begin, by the end of their name, or because they are readable text."""

import mimetypes
import re

PDF = "application/pdf"
# What the vision models of all providers take.
IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)
# ISO media files say theirs behind the length of their first box.
_BRANDS = {b"heic": "image/heic", b"heix": "image/heic", b"mif1": "image/heif", b"avif": "image/avif"}

# The usual ones the same on every machine; for all others Python asks the machine.
_ENDINGS = {
    "csv": "text/csv",
    "gif": "image/gif",
    "heic": "image/heic",
    "htm": "text/html",
    "html": "text/html",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "log": "text/plain",
    "md": "text/markdown",
    "pdf": PDF,
    "png": "image/png",
    "svg": "image/svg+xml",
    "tsv": "text/tab-separated-values",
    "txt": "text/plain",
    "webp": "image/webp",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
}
_SAME = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "application/x-pdf": PDF}
_FORM = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}/[a-z0-9][a-z0-9.+-]{0,99}")
_UNREADABLE = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_TEXT = re.compile(
    r"text/.+|.+\+(json|xml|yaml)"
    r"|application/(json|x-ndjson|xml|yaml|x-yaml|toml|sql|javascript|x-javascript|x-sh|x-python)"
)


def normal(media_type: str) -> str | None:
    """The media type as it is stored: in lower case, without parameters; None for what is none."""
    plain = media_type.partition(";")[0].strip().lower()
    return _SAME.get(plain, plain) if _FORM.fullmatch(plain) else None


def by_beginning(data: bytes) -> str | None:
    """The type that the first bytes say for sure."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if data[4:8] == b"ftyp" and data[8:12] in _BRANDS:
        return _BRANDS[data[8:12]]
    return next((media_type for beginning, media_type in _BEGINNINGS if data.startswith(beginning)), None)


def may_be(data: bytes, media_type: str) -> bool:
    """Whether data begins as a type must that has one beginning: the images of IMAGES and PDF."""
    if media_type == PDF:
        # Readers look for it so far, and some writers put something before it.
        return b"%PDF-" in data[:1024]
    return media_type not in IMAGES or by_beginning(data) == media_type


def is_sure(media_type: str) -> bool:
    """Whether data of this type cannot be text of another kind, where a name says it."""
    return media_type == PDF or media_type in IMAGES or is_text(media_type)


def by_name(name: str) -> str | None:
    """The type that the end of a file's name, or of a URL's path, stands for."""
    _, dot, ending = name.rpartition(".")
    if not dot:
        return None
    known = _ENDINGS.get(ending.lower()) or mimetypes.guess_type(f"file.{ending}")[0]
    return normal(known) if known else None


def is_text(media_type: str) -> bool:
    """Whether data of this type is for reading."""
    return _TEXT.fullmatch(media_type) is not None


def is_readable(text: str | None) -> bool:
    """Whether it is a text that people write, without what is for machines."""
    return text is not None and not _UNREADABLE.search(text)


def as_text(data: bytes) -> str | None:
    """The data as text; None where it is none: not UTF-8, or with a NUL."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text
