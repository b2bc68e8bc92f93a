"""Live nodes share the keys evenly without talking to each other, and few keys move when one comes or goes."""

from __future__ import annotations

import uuid

import pytest

from eventservice.db.leases import pick_share

KEYS = range(1024)
NODES = [uuid.UUID(int=n + 1) for n in range(5)]


def shares(live: list[uuid.UUID]) -> dict[uuid.UUID, set[int]]:
    return {node: pick_share(KEYS, node, live) for node in live}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_key_falls_to_exactly_one_node(count: int) -> None:
    held = shares(NODES[:count])
    assert sorted(key for keys in held.values() for key in keys) == list(KEYS)


def test_the_shares_are_alike() -> None:
    sizes = [len(keys) for keys in shares(NODES).values()]
    assert min(sizes) > 0.75 * len(KEYS) / 5
    assert max(sizes) < 1.25 * len(KEYS) / 5


def test_when_a_node_goes_only_its_own_keys_move() -> None:
    before, after = shares(NODES), shares(NODES[:-1])
    for node in NODES[:-1]:
        assert before[node] <= after[node]


def test_when_a_node_comes_keys_move_to_it_only() -> None:
    before, after = shares(NODES[:-1]), shares(NODES)
    for node in NODES[:-1]:
        assert after[node] <= before[node]


def test_the_order_in_which_the_nodes_are_listed_does_not_matter() -> None:
    assert shares(NODES) == shares(NODES[::-1])
