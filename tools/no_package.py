"""The build backend of pyproject.toml. It refuses to build: Event Service is installed as a clone, not as a package.

Without a backend, `pip install .` would fall back to setuptools, which fails with a message about folders.
"""

import sys
from typing import NoReturn

MESSAGE = """
Event Service is an application that runs from a clone of its repository. There is no package to install.

    make install    install what it needs into .venv (requirements.lock)
    make run        start it on this machine

docs/operations.md describes how to install it on a server.
"""


def build_wheel(*arguments: object, **options: object) -> NoReturn:
    sys.exit(MESSAGE)


build_sdist = build_editable = build_wheel
# Called first, where a message is shown without a traceback of pip's own.
get_requires_for_build_wheel = get_requires_for_build_sdist = get_requires_for_build_editable = build_wheel
