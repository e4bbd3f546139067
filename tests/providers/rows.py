"""The recorded rows and what official clients made of them."""

import json
from pathlib import Path
from typing import Any

from tests.providers.fake_server import Answer, response

_HERE = Path(__file__).parent / "recorded"
# The server frames the body itself.
_FRAMING = {"transfer-encoding", "content-length", "content-encoding", "connection"}


def load(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_HERE / f"{name}.jsonl").read_text("utf-8").splitlines()]


RECORDED = [row for name in ("openai_chat", "groq", "mistral", "openai_compatible", "anthropic") for row in load(name)]
BY_ID = {row["id"]: row for row in RECORDED}
SHAPES = load("error_shapes")
ORACLE = {row["id"]: row for row in load("oracle")}


def is_streamed(row: dict[str, Any]) -> bool:
    return "sse" in row["response"]


def replay(row: dict[str, Any]) -> Answer:
    recorded = row["response"]
    headers = {name: value for name, value in recorded["headers"].items() if name.lower() not in _FRAMING}
    body = recorded["sse"] if is_streamed(row) else recorded["body"]
    content = body.encode() if isinstance(body, str) else body
    return response(content, recorded["status"], **headers)
