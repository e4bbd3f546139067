"""What a provider counts its limits by, as a short hash: who shares it shares the wait when a limit is reached."""

from hashlib import blake2b
from typing import Any

# Not to be compared with hashes of keys made elsewhere.
_SALT = b"agentq account"


def account_id(*parts: str) -> str:
    """A hash of provider, address and key, from which none of them can be told: twelve hexadecimal digits."""
    return blake2b("\n".join(parts).encode(), digest_size=6, key=_SALT).hexdigest()


def account_of(provider: Any) -> str | None:
    """The account that a provider's calls are counted by; None where it has none, and nobody waits for others.

    A provider says it with a method ``account()``, see HasAccount; any other is one by its class and name.
    """
    ask = getattr(provider, "account", None)
    if callable(ask):
        found = ask()
        return None if found is None else str(found)
    kind = type(provider)
    return account_id(f"{kind.__module__}.{kind.__qualname__}", provider.name)
