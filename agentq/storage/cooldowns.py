"""Models that refuse calls for now, for all processes: until when nobody calls, and who goes first after that.

A refusal makes a cool-down of the account and its model. Whoever is to call meanwhile takes a place in line instead:
from the end of the cool-down on places come at a pace that doubles again and again, so that a thousand runs do not all
come back at once. The first refusal after that is the next cool-down (``epoch``): all places are void, and the pace is
less than the one at which it was too much. Without refusals the row expires, and everybody calls as before.

A row is changed in refusals, and by those who wait: where nothing is limited there is none. What a crash may take away
here costs some refused calls, so nothing waits for an fsync.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from agentq.storage.pace import LEFT, PLACE, SINCE, passed, place_at, rate
from agentq.storage.sql import Connection, text
from agentq.storage.steps import NO_FSYNC

# No provider's word is kept for longer than this.
LONGEST_SECS = 900.0
# As long as nobody says what is too much: so many calls a second at first, twice as many after so many seconds.
_PACE, _DOUBLING_SECS = 2.0, 5.0
# Once that is known it is approached from below, and more slowly.
_LESS, _SLOWER_SECS, _LEAST_PACE = 0.7, 20.0, 0.1
# The longest wait of its own that a provider gets which says nothing and refuses again and again.
_PATIENCE_SECS = 60.0
# It is remembered for so long after its end, and after the last who waits.
_LINGER_SECS = 60.0

_EXPIRES = f"greatest({{until}}, now()) + interval '{_LINGER_SECS:g} s'"
_IS_OVER, _IS_ON = "c.expires_at <= now()", "c.until > now()"
# Nobody got through since the last one: the first who came was refused again.
_AT_ONCE = f"{SINCE} < greatest(2 / c.pace, 2)"
_STREAK = f"CASE WHEN {_IS_OVER} THEN 0 WHEN {_IS_ON} THEN c.streak WHEN {_AT_ONCE} THEN c.streak + 1 ELSE 0 END"
_PATIENCE = f"CASE WHEN {_IS_OVER} OR {_IS_ON} THEN 0 ELSE least({_PATIENCE_SECS}, power(2, {_STREAK}) / 2) END"
_UNTIL = f"""CASE WHEN {_IS_ON} THEN greatest(c.until, excluded.until)
    ELSE now() + make_interval(secs => greatest(CAST(:wait_secs AS float), {_PATIENCE})) END"""
_REFUSED = text(f"""
    WITH {NO_FSYNC}, gone AS (
        DELETE FROM agentq.cooldowns WHERE (account, model) IN (
            SELECT account, model FROM agentq.cooldowns
            WHERE expires_at < now() - interval '1 hour' AND (account, model) <> (:account, :model)
            FOR UPDATE SKIP LOCKED)
    )
    INSERT INTO agentq.cooldowns AS c (account, model, provider, code, epoch, since, until, expires_at, pace,
                                       doubling_secs, streak, taken, refused)
    SELECT :account, :model, :provider, :code, 1, now(), until, {_EXPIRES.format(until="until")},
        {_PACE}, {_DOUBLING_SECS}, 0, 1, 1
    FROM fast, (SELECT now() + make_interval(secs => CAST(:wait_secs AS float)) AS until) new
    ON CONFLICT (account, model) DO UPDATE SET
        code = excluded.code, refused = CASE WHEN {_IS_OVER} THEN 1 ELSE c.refused + 1 END,
        since = CASE WHEN {_IS_OVER} THEN now() ELSE c.since END,
        epoch = CASE WHEN {_IS_ON} THEN c.epoch ELSE c.epoch + 1 END,
        until = {_UNTIL},
        expires_at = greatest(c.expires_at, {_EXPIRES.format(until=_UNTIL)}),
        pace = CASE WHEN {_IS_OVER} THEN {_PACE} WHEN {_IS_ON} THEN c.pace
            ELSE greatest({_LEAST_PACE}, {_LESS} * {rate(SINCE)}) END,
        doubling_secs = CASE WHEN {_IS_OVER} THEN {_DOUBLING_SECS} WHEN {_IS_ON} THEN c.doubling_secs
            ELSE {_SLOWER_SECS} END,
        streak = {_STREAK},
        taken = CASE WHEN {_IS_ON} THEN c.taken + 1 ELSE 1 END
    RETURNING {PLACE}
""")
_TAKE = text(f"""
    WITH {NO_FSYNC}
    UPDATE agentq.cooldowns c SET
        taken = greatest(c.taken, {passed(SINCE)}) + 1,
        expires_at = CASE WHEN {place_at("c.taken")} > {SINCE}
            THEN greatest(c.expires_at,
                          c.until + make_interval(secs => {place_at("c.taken")}) + interval '{_LINGER_SECS:g} s')
            ELSE c.expires_at END
    FROM fast WHERE c.account = :account AND c.model = :model AND c.expires_at > now()
    RETURNING {PLACE}
""")
_LIST = text(f"""
    SELECT c.account, c.model, c.provider, c.code, c.since, c.until, c.refused, {LEFT} AS left_secs,
        CASE WHEN {place_at("c.taken - 1")} > {SINCE}
            THEN ceil(c.taken - {passed(SINCE)}) ELSE 0 END AS waiting
    FROM agentq.cooldowns c WHERE c.expires_at > now() ORDER BY c.until DESC, c.account, c.model
""")
_PURGE = text("DELETE FROM agentq.cooldowns WHERE expires_at < now()")


@dataclass(frozen=True)
class Place:
    """One's turn in a cool-down: which that is, how long it lasts still, and after how many seconds one may call."""

    epoch: int
    left_secs: float
    wait_secs: float


@dataclass(frozen=True)
class Cooldown:
    """A model that refused calls lately. ``account`` is a hash; ``left_secs`` is 0 once calls are let go again.

    ``waiting`` is how many calls are in line, about.
    """

    account: str
    model: str
    provider: str
    code: str
    since: datetime
    until: datetime
    refused: int
    left_secs: float
    waiting: int


def refused(connection: Connection, account: str, model: str, *, provider: str, code: str, wait_secs: float) -> Place:
    """A call was refused, and is to wait so long at least; the answer is its own next turn."""
    values = {"account": account, "model": model, "provider": provider, "code": code}
    row = connection.execute(_REFUSED, values | {"wait_secs": min(wait_secs, LONGEST_SECS)}).one()
    return Place(row.epoch, row.left_secs, row.wait_secs)


def take(connection: Connection, account: str, model: str) -> Place | None:
    """A place in the line; None where there is none any more."""
    row = connection.execute(_TAKE, {"account": account, "model": model}).first()
    return None if row is None else Place(row.epoch, row.left_secs, row.wait_secs)


def live(connection: Connection) -> Sequence[Cooldown]:
    """Those that count now, the longest first."""
    return [Cooldown(**row._asdict() | {"waiting": int(row.waiting)}) for row in connection.execute(_LIST)]


def purge(connection: Connection) -> None:
    """Delete those that are over."""
    connection.execute(_PURGE)
