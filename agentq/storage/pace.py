"""How calls are let go after a cool-down, as SQL over its row ``c``: at a pace that doubles again and again."""

# Seconds since the end of the cool-down, negative before it; bounded, so that nothing overflows.
SINCE = "CAST(EXTRACT(epoch FROM now() - c.until) AS float)"
_LN2 = "ln(CAST(2 AS float))"


def rate(secs: str) -> str:
    """The SQL for how many calls a second are let go so many seconds after the end."""
    return f"c.pace * power(2, least(greatest({secs}, 0) / c.doubling_secs, 30))"


def passed(secs: str) -> str:
    """How many have been let go by then."""
    return f"floor(c.doubling_secs / {_LN2} * ({rate(secs)} - c.pace))"


def place_at(number: str) -> str:
    """After how many seconds place number ``number`` comes, from 0."""
    return f"c.doubling_secs * ln(1 + ({number}) * {_LN2} / (c.pace * c.doubling_secs)) / {_LN2}"


# From now on: where somebody is before it, anywhere up to the next place, so that two do not come together.
_IN_LINE = f"""CASE WHEN {place_at("c.taken - 1")} > {SINCE}
    THEN {place_at("c.taken - 1 + random()")} - {SINCE} ELSE 0 END"""
LEFT = "greatest(CAST(EXTRACT(epoch FROM c.until - now()) AS float), 0)"
PLACE = f"c.epoch, {LEFT} AS left_secs, {_IN_LINE} AS wait_secs"

# For the claim of a step, which has it beside its run: all there are, mostly none.
LIVE = f"""(SELECT json_agg(json_build_array(c.account, c.model, c.epoch, {LEFT},
        greatest({place_at("greatest(c.taken, " + passed(SINCE) + ")")} - {SINCE}, 0), c.code))
    FROM agentq.cooldowns c WHERE c.expires_at > now())"""
