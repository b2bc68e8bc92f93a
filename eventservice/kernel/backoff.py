"""How long to wait after failures in a row."""

import random


def equal_jitter(failures: int, first: float, most: float) -> float:
    """Seconds, at least half of the exponential delay: for one's own retries."""
    return _exponential(failures, first, most, 2.0) * random.uniform(0.5, 1.0)  # noqa: S311


def full_jitter(failures: int, first: float, most: float, multiplier: float = 2.0) -> float:
    """Seconds, spread from zero: for the retries of many that must not come back together."""
    return _exponential(failures, first, most, multiplier) * random.random()  # noqa: S311


def _exponential(failures: int, first: float, most: float, multiplier: float) -> float:
    try:
        return min(most, first * float(multiplier) ** (failures - 1))
    except OverflowError:
        return most
