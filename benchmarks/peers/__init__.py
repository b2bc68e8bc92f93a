"""Comparison with other job queues: the same work on the same machine, in turns (docs/performance.md)."""
