"""Measures agentq beside what its machine can do at best: ``python -m benchmarks``, told in docs/performance.md."""
