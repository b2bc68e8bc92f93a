"""The limit on open files: each connection is one, and the usual soft limit is 1024."""

import resource


def raise_open_files_limit() -> None:
    """Raise the soft limit of this process to its hard limit, which needs no privileges."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
