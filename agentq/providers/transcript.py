"""What every adapter does alike with a transcript: argument texts, call ids, foreign names and reasoning blocks."""

import hashlib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentq.messages import AssistantMessage, Reasoning, ToolCall, ToolResult

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def arguments_object(text: str) -> dict[str, Any]:
    """The arguments as an object; broken ones (a call that was cut) are {}, for no provider takes them back."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def sent_arguments(text: str) -> str:
    """Argument text for a provider that takes text."""
    # The very text the model wrote, as long as it is what it should be: prompt caches compare bytes.
    return text if arguments_object(text) or text.strip() == "{}" else "{}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def sent_name(name: str) -> str:
    """A tool name fit to be sent. Only a name that the model invented can need a change."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "_"


def result_text(result: ToolResult) -> str:
    """The result for a provider that has no flag for errors: the text says so."""
    if result.status == "success":
        return result.text
    word = "Error" if result.status == "error" else "Rejected"
    return result.text if result.text.lower().startswith(word.lower()) else f"{word}: {result.text}"


# ---------------------------------------------------------------------------------------------- call ids


@dataclass(frozen=True)
class IdRule:
    """The ids a provider takes: ``pattern`` as a whole; a substitute is letters and digits of ``length``."""

    pattern: str
    length: int

    def fits(self, call_id: str) -> bool:
        return re.fullmatch(self.pattern, call_id) is not None

    def substitute(self, call_id: str) -> str:
        number = int.from_bytes(hashlib.sha256(call_id.encode()).digest())
        letters = []
        for _ in range(self.length):
            number, digit = divmod(number, len(_ALPHABET))
            letters.append(_ALPHABET[digit])
        return "".join(letters)


class SentIds:
    """The ids of one outgoing request, calls and results alike. Without a rule they stay as they are.

    Different ids stay different, and an id that a later turn uses again becomes a new one: Anthropic wants each only
    once in a conversation. The same transcript always gives the same ids.
    """

    def __init__(self, rule: IdRule | None) -> None:
        self._rule = rule
        self._uses: Counter[str] = Counter()
        self._open: defaultdict[str, deque[str]] = defaultdict(deque)

    def for_calls(self, calls: Sequence[ToolCall]) -> list[str]:
        self._open.clear()
        return [self._for_call(call.id) for call in calls]

    def _for_call(self, call_id: str) -> str:
        used, self._uses[call_id] = self._uses[call_id], self._uses[call_id] + 1
        sent = call_id
        if self._rule is not None and (used or not self._rule.fits(call_id)):
            sent = self._rule.substitute(f"{used}:{call_id}")
        self._open[call_id].append(sent)
        return sent

    def for_result(self, call_id: str) -> str:
        waiting = self._open.get(call_id)
        if waiting:
            return waiting.popleft()
        return call_id if self._rule is None or self._rule.fits(call_id) else self._rule.substitute(f"0:{call_id}")


# ---------------------------------------------------------------------------------------------- reasoning


def keep_block(provider: str, model: str, block: dict[str, Any], *, chars: int = 0, calls: int = 0) -> Reasoning:
    """The block as it came. ``chars`` of text and ``calls`` came before it in the reply."""
    data: dict[str, Any] = {"block": block}
    try:
        json.dumps(block, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # A half of a surrogate pair cannot be stored; its escape can, and signed text must not be cleaned.
        data = {"escaped": json.dumps(block)}
    if chars or calls:
        data |= {"chars": chars, "calls": calls}
    return Reasoning(provider=provider, model=model, data=data)


@dataclass(frozen=True)
class Block:
    """A kept block on its way back, with its place in the reply."""

    value: dict[str, Any]
    chars: int
    calls: int


def kept_blocks(message: AssistantMessage, provider: str, model: str) -> list[Block]:
    """The blocks that this provider and model made, in their order; those of another are left out."""
    return [
        Block(_value(kept.data), kept.data.get("chars", 0), kept.data.get("calls", 0))
        for kept in message.reasoning
        if kept.provider == provider and kept.model == model
    ]


def _value(data: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(data["escaped"]) if "escaped" in data else data["block"]
    return value


def count(value: Any) -> int | None:
    """A number of tokens, or None for anything that is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
