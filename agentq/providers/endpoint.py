"""Where a provider is, how it wants its key, and one exchange with it: the document of a good answer, or an error."""

import os
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from agentq.errors import ProviderError
from agentq.providers.accounts import account_id
from agentq.providers.faults import event_document, http_fault
from agentq.providers.http import HttpReply, open_stream, post_json
from agentq.providers.sse import server_events

DONE = "[DONE]"
_HEADER_SAFE = re.compile(r"[\x21-\x7e]+")


class Secret:
    """A key given in code, else the one in the environment when it is asked for. No repr and no pickle has it.

    ``before`` is another variable, which wins where both are set.
    """

    def __init__(self, variable: str, value: str | None = None, *, before: str = "") -> None:
        self.variable = variable
        self._before = before
        self._value = value

    def read(self) -> str:
        """The key, or "" when there is none. Raises ProviderError for one that no header can carry."""
        found = (self._value, os.environ.get(self._before), os.environ.get(self.variable))
        value = next((key for each in found if (key := (each or "").strip())), "")
        if value and not _HEADER_SAFE.fullmatch(value):
            raise ProviderError("auth_failed", f"the key in {self.variable} has a character that no key has")
        return value

    def __repr__(self) -> str:
        return f"Secret({self.variable!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "Secret":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Secret, before=self._before), (self.variable,)


@dataclass(frozen=True)
class Endpoint:
    """One provider's address and key. Environment variables are read at each call, so none is stored with a run.

    ``base_url`` wins over the variable, the variable over ``default_url``. ``bearer`` is a second secret that goes
    into ``Authorization`` where the first one goes into ``key_header``.
    """

    name: str
    secret: Secret
    default_url: str = ""
    base_url: str | None = None
    base_url_variable: str = ""
    key_header: str = "authorization"
    key_required: bool = True
    bearer: Secret | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    header_variables: Mapping[str, str] = field(default_factory=dict)

    def post(self, path: str, body: Mapping[str, Any], timeout_secs: float) -> dict[str, Any]:
        """The JSON object of a good answer. Raises ProviderError for everything else."""
        key, headers = self._headers("application/json")
        reply = post_json(self.url + path, headers, body, timeout_secs)
        return self._document(reply, key)

    def stream(
        self, path: str, body: Mapping[str, Any], timeout_secs: float
    ) -> Generator[tuple[str, dict[str, Any]], None, None]:
        """The events of a good answer as they come: name ("" where there is none) and JSON object.

        Ends at the end of the body, or with an empty event ``[DONE]`` where the server has sent that. What ends before
        its terminal marker is not complete: that is for the adapter to see. A server that does not stream has its whole
        document as the one event ``document``. Raises ProviderError for everything else, an error in the middle
        included. To be closed.
        """
        key, headers = self._headers("text/event-stream, application/json")
        with open_stream(self.url + path, headers, body, timeout_secs) as answer:
            if answer.status // 100 != 2 or "event-stream" not in answer.headers.get("content-type", "event-stream"):
                yield "document", self._document(answer.whole(), key)
                return
            yield from stream_events(self.name, answer.pieces, key=key)

    @property
    def is_moved(self) -> bool:
        """Whether it is somewhere else than at its default address."""
        return self.url != self.default_url

    def account(self) -> str | None:
        """See HasAccount; None where there is no key or address to call with."""
        try:
            key, _ = self._key()
            # An organisation or a project has limits of its own.
            billed = [os.environ.get(each, "").strip() for _, each in sorted(self.header_variables.items())]
            # The same account, whichever of its APIs is spoken.
            server = self.name.removesuffix("-responses")
            return account_id(server, self.url, key, *filter(None, billed))
        except ProviderError:
            return None

    def _document(self, reply: HttpReply, key: str) -> dict[str, Any]:
        fault = http_fault(self.name, reply, key=key)
        if fault is not None:
            raise fault
        document: dict[str, Any] = reply.document
        return document

    def _headers(self, accept: str) -> tuple[str, dict[str, str]]:
        """The key, and the headers with it."""
        key, headers = self._key()
        for header, variable in self.header_variables.items():
            if value := os.environ.get(variable, "").strip():
                headers[header] = value
        return key, {"content-type": "application/json", "accept": accept, **headers, **self.headers}

    def _key(self) -> tuple[str, dict[str, str]]:
        if key := self.secret.read():
            return key, {self.key_header: f"Bearer {key}" if self.key_header == "authorization" else key}
        if self.bearer is not None and (key := self.bearer.read()):
            return key, {"authorization": f"Bearer {key}"}
        if self.key_required:
            raise ProviderError("auth_failed", f"there is no key for {self.name}: set {self.secret.variable}")
        return "", {}

    @property
    def url(self) -> str:
        """The address. Raises ProviderError when there is none."""
        url = self.base_url or os.environ.get(self.base_url_variable, "").strip() or self.default_url
        if not url.startswith(("http://", "https://")):
            where = "base_url" if self.base_url or not self.base_url_variable else self.base_url_variable
            raise ProviderError("request_rejected", f"{self.name} has no http(s) address: set {where}")
        return url.rstrip("/")


def stream_events(provider: str, pieces: Iterable[bytes], *, key: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The events in a streamed body, see ``Endpoint.stream``."""
    for event in server_events(pieces):
        if event.data.strip() == DONE:
            yield DONE, {}
            return
        yield event.name, event_document(provider, event.data, key=key)


class AtEndpoint:
    """A provider that is asked at one endpoint, whose name it goes by."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint = endpoint
        self.model = model

    @property
    def name(self) -> str:
        return self._endpoint.name

    def account(self) -> str | None:
        """See HasAccount."""
        return self._endpoint.account()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"
