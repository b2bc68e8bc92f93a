"""Programs that show how fast the system is, each beside what bounds it, in the same run (README.md)."""
