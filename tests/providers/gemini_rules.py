"""What a request to Gemini has to be: by the official client's own types, and by the rules that types cannot say."""

from itertools import pairwise
from typing import Any

from google.genai import types
from pydantic import BaseModel

MODES = {"AUTO", "ANY", "NONE", "VALIDATED"}
KINDS = {"text", "inlineData", "fileData", "functionCall", "functionResponse"}


class Request(BaseModel, extra="forbid"):
    """The body of generateContent; its parts are the official client's, which forbid what they do not know."""

    contents: list[types.Content]
    systemInstruction: types.Content | None = None  # noqa: N815
    tools: list[types.Tool] | None = None
    toolConfig: types.ToolConfig | None = None  # noqa: N815
    generationConfig: types.GenerationConfig | None = None  # noqa: N815


def check(body: dict[str, Any]) -> None:
    """The types, and what they let pass: names of modes, whose turn it is, and that each call has its result."""
    Request.model_validate(body)
    if "toolConfig" in body:
        assert body["toolConfig"]["functionCallingConfig"]["mode"] in MODES
    turns = body["contents"]
    assert turns[0]["role"] == "user"
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        assert turn["parts"]
        assert all(len(part.keys() & KINDS) == 1 for part in turn["parts"])
        calls = [part["functionCall"] for part in turn["parts"] if "functionCall" in part]
        results = [part["functionResponse"] for part in turn["parts"] if "functionResponse" in part]
        assert len(results) in (0, len(turn["parts"])), "results stand alone in their turn"
        assert turn["role"] == ("model" if calls else turn["role"])
        if calls:
            assert following is not None
            back = [part["functionResponse"] for part in following["parts"]]
            assert following["role"] == "user"
            assert [(r["name"], r.get("id")) for r in back] == [(c["name"], c.get("id")) for c in calls]
    for first, second in pairwise(turns):
        assert (first["role"], second["role"]) != ("model", "model")
