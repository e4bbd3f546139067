"""An agent whose module asks the database when it is imported, and whose tool goes on with that connection pool."""

from agentq import Agent, Client, RunContext, tool
from agentq.providers.scripted import Call, Scripted

# In a worker this is before the pool's processes are forked.
client = Client()
client.runs(limit=1)


@tool
def look(ctx: RunContext) -> str:
    """Read this run's own tag."""
    return client.handle(ctx.run_id).run().tags["n"]


looker = Agent("looker", model=Scripted([Call("look"), "done"]), tools=[look])
