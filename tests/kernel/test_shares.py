"""Live nodes share the keys evenly without talking to each other, and few keys move when a node joins or leaves."""

from __future__ import annotations

import uuid

import pytest

from eventservice.db.leases import pick_share

KEYS = range(1024)
NODES = [uuid.UUID(int=n + 1) for n in range(5)]


def shares(live: list[uuid.UUID]) -> dict[uuid.UUID, set[int]]:
    return {node: pick_share(KEYS, node, live) for node in live}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_key_belongs_to_exactly_one_node(count: int) -> None:
    held = shares(NODES[:count])
    assert sorted(key for keys in held.values() for key in keys) == list(KEYS)


def test_the_shares_are_of_similar_size() -> None:
    sizes = [len(keys) for keys in shares(NODES).values()]
    assert min(sizes) > 0.75 * len(KEYS) / 5
    assert max(sizes) < 1.25 * len(KEYS) / 5


def test_only_the_keys_of_a_node_that_leaves_move() -> None:
    before, after = shares(NODES), shares(NODES[:-1])
    for node in NODES[:-1]:
        assert before[node] <= after[node]


def test_keys_move_only_to_a_node_that_joins() -> None:
    before, after = shares(NODES[:-1]), shares(NODES)
    for node in NODES[:-1]:
        assert after[node] <= before[node]


def test_the_order_of_the_nodes_does_not_matter() -> None:
    assert shares(NODES) == shares(NODES[::-1])
