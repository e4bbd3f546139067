"""A run and those below it: its sub-agents' runs, and theirs. The SQL for reading them together."""

# Of the run whose id is given. It has the runs that have ended, too: a decision on one of theirs is history to be told.
BELOW = """below AS (
    SELECT CAST(:run_id AS text) AS id
    UNION ALL
    SELECT child.id FROM below JOIN agentq.runs child ON child.parent_run_id = below.id)"""

# A run whose turn waits for nothing but people is waiting, also where these are asked by its sub-agents. Such a run has
# no lease and no due time; each call that is out is put before a person, or is a sub-agent's whose run waits itself.
_MOVES = """tree.status <> 'waiting' AND (
        tree.status <> 'running' OR tree.phase <> 'tools' OR tree.lease_token IS NOT NULL OR tree.due_at IS NOT NULL
        OR EXISTS (
            SELECT 1 FROM agentq.tool_calls c WHERE c.run_id = tree.id AND c.turn = tree.turn
                AND (c.status IN ('pending', 'announced', 'running')
                     AND (c.kind <> 'agent' OR c.child_run_id IS NULL))))"""
_WAITS = f"""(
    WITH RECURSIVE tree AS (
        SELECT r.id, r.status, r.phase, r.turn, r.lease_token, r.due_at FROM agentq.runs r WHERE r.id = runs.id
        UNION ALL
        SELECT r.id, r.status, r.phase, r.turn, r.lease_token, r.due_at
        FROM tree JOIN agentq.tool_calls c ON c.run_id = tree.id AND c.turn = tree.turn AND c.status <> 'done'
            JOIN agentq.runs r ON r.id = c.child_run_id)
    SELECT bool_or(tree.status = 'waiting') AND NOT bool_or({_MOVES}) FROM tree)"""
# For a row of ``runs``; the tree is looked at only where the run itself does nothing.
STATUS = f"""CASE WHEN status = 'running' AND phase = 'tools' AND lease_token IS NULL AND due_at IS NULL AND {_WAITS}
    THEN 'waiting' ELSE status END"""
