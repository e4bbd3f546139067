"""Text that Postgres, JSON and every provider accept: the one place where foreign text is cleaned and cut."""

import re

# Postgres text refuses NUL; a lone surrogate has no UTF-8 form.
_REFUSED = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """The text with each NUL and lone surrogate replaced by U+FFFD; all else is kept."""
    return _REFUSED.sub(REPLACEMENT, text)


def told(error: BaseException) -> str:
    """Type and text of an exception, whatever it does when it is asked for its text."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return ": ".join(filter(None, (type(error).__name__, text)))


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters; a cut text ends with a note that says how long it was."""
    if len(text) <= limit:
        return text
    note = f"\n[cut: {len(text)} characters, the first {{kept}} are shown]"
    kept = limit - len(note.format(kept=limit))
    return text[:kept] + note.format(kept=kept) if kept > 0 else text[:limit]
