"""How a conversation is shown to people."""

from collections.abc import Iterable, Sequence

import click

from agentq.cli.output import paint
from agentq.content import File, Image
from agentq.messages import AssistantMessage, Message, ToolMessage

RESULT_CHARS = 500


def print_messages(messages: Sequence[Message], *, numbered: bool = False) -> None:
    """A line for each text and call; ``numbered`` says which message it is, from 1 on."""
    click.echo()
    for number, message in enumerate(messages, 1):
        for who, text in _said(message):
            place = f"{number:>4}  " if numbered else ""
            click.echo(f"{place}{paint(f'{who:<10}', bold=True)}{text}")


def _said(message: Message) -> list[tuple[str, str]]:
    match message:
        case ToolMessage(result=result):
            return [
                ("tool", f"{result.name} -> {_shortened(_in_words(result.parts) if result.media else result.text)}")
            ]
        case AssistantMessage():
            calls = [("calls", f"{call.name} {call.arguments}") for call in message.calls]
            return ([("model", message.text)] if message.text else []) + calls
        case _:
            return [("user", _in_words(message.parts) if message.media else message.text)]


def _in_words(parts: Iterable[str | Image | File]) -> str:
    """With a word in the place of each image and file."""
    return "\n".join(map(str, parts))


def _shortened(text: str) -> str:
    if len(text) <= RESULT_CHARS:
        return text
    return f"{text[:RESULT_CHARS]}… ({len(text)} characters; --json has them all)"
