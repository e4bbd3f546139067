"""The app for ``celery -A agentq_workers.main worker``, made from ``AGENTQ_*``."""

from agentq_workers import lifeline, log
from agentq_workers.app import make_app

log.of_process()
app = make_app()
lifeline.attach(app)
