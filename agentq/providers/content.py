"""Images and files on their way to a model: what adapters do alike, also with what they cannot send."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentq import media_types
from agentq.content import File, Image
from agentq.errors import ProviderError
from agentq.messages import ToolResult


def is_image(media: Image | File) -> bool:
    """Whether it is one that vision models take; of a URL that does not say, the user's word counts."""
    if media.url and isinstance(media, Image):
        return media.media_type in media_types.IMAGES or not media.media_type
    return media.media_type in media_types.IMAGES


def is_pdf(media: Image | File) -> bool:
    """The same of PDF documents."""
    if media.url and isinstance(media, File):
        return media.media_type in (media_types.PDF, "")
    return media.media_type == media_types.PDF


def base64_of(media: Image | File) -> str:
    return base64.b64encode(_data(media)).decode()


def data_url(media: Image | File) -> str:
    return f"data:{media.media_type};base64,{base64_of(media)}"


def text_of(media: Image | File) -> str | None:
    """What a text file says; None of anything else."""
    if media.url or not media_types.is_text(media.media_type):
        return None
    return media_types.as_text(_data(media))


def as_words(media: Image | File) -> str | None:
    """A text file for a provider that has no files of text: between two lines that say which."""
    text = text_of(media)
    return None if text is None else f"{media}\n{text}\n[end of {media.name or 'the file'}]"


@dataclass(frozen=True)
class InWords:
    """A result of the tool ``name`` for a provider that takes nothing but text there, and what is shown behind it."""

    name: str
    text: str
    shown: tuple[dict[str, Any], ...]

    def title(self, number: int) -> str:
        """What is said before the one that is shown as this number."""
        return f"Number {number}, from {self.name}:"


def in_words(
    result: ToolResult, form: Callable[[Image | File], dict[str, Any] | None], *, shown_before: int
) -> InWords:
    """``form`` gives a part to be shown, or None; those that were ``shown_before`` have their numbers already."""
    words, shown = list[str](), list[dict[str, Any]]()
    for part in result.parts:
        if isinstance(part, str):
            words.append(part)
        elif (text := as_words(part)) is not None:
            words.append(text)
        elif (given := form(part)) is not None:
            shown.append(given)
            words.append(f"{part}, shown below as number {shown_before + len(shown)}")
        else:
            words.append(placeholder(part))
    return InWords(result.name, "\n".join(words), tuple(shown))


def placeholder(media: Image | File) -> str:
    """What a model is told of a tool's image or file that it cannot take."""
    return f"{str(media)[:-1]}: this model cannot take it]"


def unsupported(media: Image | File, provider: str) -> ProviderError:
    """The error for what a user has sent: left out silently, the answer would be about something else."""
    hint = "give the bytes instead of the URL" if media.url else "send it as an image (PNG, JPEG, GIF, WebP) or as text"
    return ProviderError("content_unsupported", f"{provider} cannot take {media}; {hint}, or use a model that can")


def _data(media: Image | File) -> bytes:
    if media.data is None:
        raise ProviderError("request_rejected", f"{media} came without its bytes")
    return media.data
