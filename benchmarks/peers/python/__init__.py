"""Drivers of the candidates that are programmed in Python. Each runs in the environment of its candidate."""
