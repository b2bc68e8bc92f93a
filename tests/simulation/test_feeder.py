"""The promises about timers in a store hold in every schedule. `SIMULATIONS=1000` runs more, `SEED=7` repeats one."""

from __future__ import annotations

import os

import pytest

from tests.simulation.world import World

SIMULATIONS = int(os.environ.get("SIMULATIONS", "20"))
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(SIMULATIONS)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_promises_hold_in_every_schedule(seed: int) -> None:
    world = World(seed).run()
    assert world.deliveries
