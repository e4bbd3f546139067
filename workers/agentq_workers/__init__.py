"""agentq's Celery workers: ``make_app`` gives the Celery app that carries runs from step to step."""

from agentq_workers.app import make_app

__all__ = ["make_app"]
