"""The app for ``celery -A agentq_workers.main worker``, made from ``AGENTQ_*``."""

from agentq_workers import lifeline
from agentq_workers.app import make_app

app = make_app()
lifeline.attach(app)
