"""How long to wait after failures in a row."""

import random


def equal_jitter(failures: int, first: float, most: float) -> float:
    """Seconds, at least half of the exponential delay: for one's own retries."""
    return _exponential(failures, first, most) * random.uniform(0.5, 1.0)  # noqa: S311


def full_jitter(failures: int, first: float, most: float) -> float:
    """Seconds, spread from zero: for the retries of many that must not come back together."""
    return _exponential(failures, first, most) * random.random()  # noqa: S311


def _exponential(failures: int, first: float, most: float) -> float:
    # The exponent is bounded because a float is.
    return min(most, first * 2.0 ** min(failures - 1, 60))
