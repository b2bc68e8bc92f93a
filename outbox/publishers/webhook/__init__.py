"""Webhooks: the publisher writes one delivery for each event and endpoint, and the deliverer sends them.

- `publisher`: the `Publisher`, which runs with the dispatcher's pass and makes no requests
- `delivery_queue`: the deliveries that wait, and every change of their state
- `deliverer`: claims due deliveries, signs and sends them, and records the results
- `endpoints`: creating, changing and removing endpoints
- `recovery`: the deliveries of each endpoint as operators see them, and retrying exhausted ones
"""
