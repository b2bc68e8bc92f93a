"""Timer stores: external databases for pending timers, one package for each kind, with its `TimerStore` in `store.py`.

CONTRIBUTING.md describes how to add one. Settings import `store_spec`, so nothing is imported here.
"""
