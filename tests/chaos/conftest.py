from tests.witness import chance, stage

__all__ = ["chance", "stage"]
