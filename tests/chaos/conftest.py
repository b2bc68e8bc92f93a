from tests.process_harness import chance, stage

__all__ = ["chance", "stage"]
