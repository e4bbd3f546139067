"""What the workers of a measurement load: the agent of the script that their environment names."""

import os

from celery.signals import worker_ready

from benchmarks import notes, scripts
from benchmarks.looper import make_agent
from benchmarks.modes import mode_here

looper = make_agent(scripts.current(), mode_here())
worker_ready.connect(lambda **_: notes.tell("ready", str(os.getpid())), weak=False)
