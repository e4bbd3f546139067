"""A worker's app whose Redis gives a message back after six seconds, if nobody has acknowledged it by then."""

from agentq_workers import make_app

app = make_app()
app.conf.broker_transport_options |= {"visibility_timeout": 6, "ack_emulation": True}
