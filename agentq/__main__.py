"""``python -m agentq``."""

from agentq.cli import main

main(prog_name="agentq")
