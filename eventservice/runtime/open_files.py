"""How many files a process may have open: each connection is one, and the usual soft limit is 1024."""

import resource


def raise_open_files_limit() -> None:
    """To what this process may have at all, without asking anybody."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
