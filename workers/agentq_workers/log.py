"""What a worker's log says: which pool speaks, and not what Celery tells everybody about itself."""

import logging
import re
import sys
import warnings
from io import TextIOWrapper
from typing import Any

from celery import Celery
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from celery.signals import celeryd_after_setup, celeryd_init

from agentq.config import Settings

# "Task … received" and "Task … succeeded": the engine's own line says what a step did.
_TALKATIVE = ("celery.worker.strategy", "celery.app.trace")
_KIND = re.compile(r"(steps|tools)-")


def attach(app: Celery, settings: Settings) -> None:
    """Prepare the log of the app's workers."""

    def before(sender: Any = None, conf: Any = None, **_: Any) -> None:
        if conf is not app.conf:
            return
        # agentq worker names its nodes so.
        if kind := _KIND.match(str(sender)):
            for name in ("worker_log_format", "worker_task_log_format"):
                conf[name] = f"[{kind[1]}] {conf[name]}"
        if settings.log_level == "INFO":
            for name in _TALKATIVE:
                logging.getLogger(name).setLevel(logging.WARNING)

    celeryd_init.connect(before, weak=False)
    # Setting up its log, Celery puts its own warnings first again.
    celeryd_after_setup.connect(lambda **_: _without_upgrade_notes(), weak=False)


def of_process() -> None:
    """For the process that is a worker: no word on running as root; what tools print comes at once."""
    warnings.filterwarnings("ignore", category=SecurityWarning)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def _without_upgrade_notes() -> None:
    warnings.filterwarnings("ignore", r"\s*In Celery 5\.1 we introduced", CPendingDeprecationWarning)
