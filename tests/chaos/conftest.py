from tests.process_harness import harness, rng

__all__ = ["rng", "harness"]
