"""Benchmarks: programs that measure how fast the system is (README.md)."""
