"""Images and files, stored once by their hash, and who refers to them.

None goes away under a reference that is being written. Whoever is about to refer to blobs holds a lock shared, from
before it looks which of them are there, to its commit; whoever takes away those that nobody refers to holds the same
lock alone, from before it looks. There are sixteen such locks, one for each first digit of a hash. Nobody waits for
anything else while it holds one alone, so nobody waits long for one.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from agentq.content import File, Image
from agentq.errors import ContentError, ContentMissingError
from agentq.storage.database import Database
from agentq.storage.rows import dump
from agentq.storage.sql import Connection, Writer, text
from agentq.storage.steps import BOUNDED

# So many that nobody refers to are looked for at a time, under no lock.
PAGE = 1_000
# So many are deleted in a transaction.
BATCH = 50

# The first number is ours among the advisory locks of the database.
_OURS = 1634169970
_SHARED = f"SELECT pg_advisory_xact_lock_shared({_OURS}, CAST(bucket AS integer))"
_BUCKETS = "unnest(string_to_array(:buckets, ',')) bucket"
_HOLD = text(f"WITH {BOUNDED} {_SHARED} FROM bounded CROSS JOIN {_BUCKETS}")
# In a transaction of somebody else, which keeps its own bounds.
_HOLD_AS_GUEST = text(f"{_SHARED} FROM {_BUCKETS}")
_TRY_ALONE = text(f"WITH {BOUNDED} SELECT pg_try_advisory_xact_lock({_OURS}, :bucket) FROM bounded")
_WHICH = text("SELECT sha256 FROM agentq.blobs WHERE sha256 = ANY(string_to_array(:hashes, ','))")
_PUT = text("""
    INSERT INTO agentq.blobs (sha256, media_type, size, data)
    VALUES (:sha256, :media_type, :size, CAST(:data AS bytea)) ON CONFLICT DO NOTHING
""")
_REFER = text("""
    INSERT INTO agentq.blob_refs (sha256, run_id, thread_id)
    SELECT sha256, run_id, thread_id FROM json_to_recordset(CAST(:refs AS json))
        AS (sha256 text, run_id text, thread_id text)
    ON CONFLICT DO NOTHING
""")
_LOAD = text("SELECT sha256, data FROM agentq.blobs WHERE sha256 = ANY(:hashes)")
_UNREFERENCED = "NOT EXISTS (SELECT FROM agentq.blob_refs r WHERE r.sha256 = b.sha256)"
_FIND = text(f"""
    SELECT sha256 FROM agentq.blobs b WHERE sha256 > :after AND {_UNREFERENCED} ORDER BY sha256 LIMIT {PAGE}
""")
# Looked at again under the lock.
_DELETE = text(f"DELETE FROM agentq.blobs b WHERE sha256 = ANY(:hashes) AND {_UNREFERENCED}")


def put(connection: Writer, media: Iterable[Image | File]) -> None:
    """Store what is not there yet, in the transaction in which ``refer`` follows, once the owners' rows are written.

    Apart from it, so that no row of a run is locked while bytes are on their way. Raises ContentError for one that is
    not there and comes without its bytes.
    """
    given = {one.sha256: one for one in sorted(media, key=lambda one: one.data is not None) if one.sha256}
    if not given:
        return
    buckets = ",".join(sorted({str(_bucket(sha256)) for sha256 in given}))
    is_ours = isinstance(connection, Connection)
    connection.execute(_HOLD if is_ours else _HOLD_AS_GUEST, {"buckets": buckets})
    there = {row.sha256 for row in connection.execute(_WHICH, {"hashes": ",".join(given)}).all()}
    # In one order: who stores the same ones at the same time waits for us, and not we for each other.
    for sha256 in sorted(given.keys() - there):
        one = given[sha256]
        if one.data is None:
            raise ContentError(f"{one} is not stored here any more; give its bytes", part=one.name, problem="missing")
        connection.execute(_PUT, {"sha256": sha256, "media_type": one.media_type, "size": one.size, "data": one.data})


def refer(connection: Writer, *owned: tuple[str, str, Iterable[Image | File]]) -> None:
    """Note who refers to what was ``put``: rows of ``("run_id" or "thread_id", the id, its media)``."""
    refs = [{kind: owner, "sha256": one.sha256} for kind, owner, media in owned for one in media if one.sha256]
    if refs:
        connection.execute(_REFER, {"refs": dump(refs)})


def load(connection: Connection, hashes: Sequence[str]) -> dict[str, bytes]:
    """The bytes of blobs. Raises ContentMissingError."""
    rows = connection.execute(_LOAD, {"hashes": list(hashes)}, binary=True).all()
    found = {row.sha256: row.data for row in rows}
    if missing := set(hashes) - found.keys():
        raise ContentMissingError(
            f"{len(missing)} of the images and files of the conversation are not stored any more; rewind it to before "
            "them, or leave them out with a before_model hook",
            sha256=sorted(missing),
        )
    return found


def delete_unreferenced(database: Database) -> int:
    """Delete what no run and no thread refers to any more; the answer is how many those were.

    To be called after runs or threads were deleted, whoever did it: in transactions of its own, small ones. Those that
    somebody is about to refer to, or may be, are left to the next call.
    """
    total, after = 0, ""
    while True:
        with database.autocommit() as connection:
            page = connection.execute(_FIND, {"after": after}).scalars()
        for bucket, found in groupby(page, _bucket):
            hashes = list(found)
            for begin in range(0, len(hashes), BATCH):
                total += _delete(database, bucket, hashes[begin : begin + BATCH])
        if len(page) < PAGE:
            return total
        after = page[-1]


def _delete(database: Database, bucket: int, hashes: Sequence[str]) -> int:
    with database.transaction() as connection:
        if not connection.execute(_TRY_ALONE, {"bucket": bucket}).scalar():
            return 0
        return connection.execute(_DELETE, {"hashes": hashes}).rowcount


def _bucket(sha256: str) -> int:
    return int(sha256[0], 16)
