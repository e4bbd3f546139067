"""The modules that have scenarios, whose agents the workers have."""

from importlib import import_module

MODULES = (
    "approvals",
    "unknowns",
    "threads",
    "busy",
    "content",
    "typed",
    "hooked",
    "sub_agents",
    "enqueued",
    "limited",
)
PLACES = tuple(f"tests.scenarios.{name}" for name in MODULES)


def load() -> None:
    """Register all scenarios."""
    for place in PLACES:
        import_module(place)
