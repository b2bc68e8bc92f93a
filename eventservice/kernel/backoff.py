"""Delays after consecutive failures."""

import random


def equal_jitter(failures: int, first: float, maximum: float) -> float:
    """Return seconds: at least half of the exponential delay. For retries of one worker."""
    return _exponential(failures, first, maximum, 2.0) * random.uniform(0.5, 1.0)  # noqa: S311


def full_jitter(failures: int, first: float, maximum: float, multiplier: float = 2.0) -> float:
    """Return seconds between zero and the exponential delay. For retries of many that must not coincide."""
    return _exponential(failures, first, maximum, multiplier) * random.random()  # noqa: S311


def _exponential(failures: int, first: float, maximum: float, multiplier: float) -> float:
    try:
        return min(maximum, first * float(multiplier) ** (failures - 1))
    except OverflowError:
        return maximum
