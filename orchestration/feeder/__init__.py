"""The feeder: it takes timers from a timer store shortly before they are due, and feeds them to this database as calls.

Its parts speak to two ports, the store (timers.stores.port) and the calls of this cell (orchestration.feeder.ports), and
keep nothing between two steps that either of them relies on. So a process may end or freeze anywhere.
"""
