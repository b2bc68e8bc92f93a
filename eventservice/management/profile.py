"""The profile: a file with the URL, tenant and API key that client commands use by default.

`manage.py up` writes it. It has the form of shell commands, so that a shell can load it as well.
"""

from __future__ import annotations

import os
import secrets
import shlex
import uuid
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

URL, TENANT, KEY = "EVENTSERVICE_URL", "EVENTSERVICE_TENANT", "EVENTSERVICE_KEY"
TARGET_PORT = "TARGET_PORT"
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")
HEADER = "# Written by `manage.py up`. Client commands read this file, and a shell can load it.\n"


def get_profile_path() -> Path:
    """Return the path of the profile, whether it exists or not. Raise OSError if there is no home directory."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():  # the specification ignores relative paths
        try:
            base = Path.home() / ".config"
        except RuntimeError as error:
            raise OSError(str(error)) from None
    return base / "eventservice" / "profile"


def read_profile() -> dict[str, str]:
    """Return the variables of the profile, or none if there is no readable profile."""
    try:
        lines = get_profile_path().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return dict(pair for line in lines if (pair := _parse_line(line)))


def _parse_line(line: str) -> tuple[str, str] | None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    name, equals, value = words[-1].partition("=") if words else ("", "", "")
    return (name, value) if equals else None


def write_profile(variables: Mapping[str, str]) -> Path:
    """Replace the profile. Only its owner can read it, because it contains a key."""
    path = get_profile_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = HEADER + "".join(f"{line}\n" for line in format_exports(variables))
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor has no path
            file.write(text)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def format_exports(variables: Mapping[str, str]) -> list[str]:
    """Return shell commands that set the variables. One without a value is left out: it would hide a good value."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items() if value]


def format_path(path: Path) -> str:
    """Return the path as a word of a shell command, with ~ for the home directory."""
    try:
        within_home = path.relative_to(Path.home())
    except (ValueError, RuntimeError):
        return shlex.quote(str(path))
    return f"~/{shlex.quote(str(within_home))}"


def find_target_port(tenant_id: uuid.UUID | None) -> int:
    """Return the port of the mock target of the running service: that of the environment, or else that of the profile, if it
    is for the service that has this tenant, or else the default."""
    profile = read_profile()
    port = profile.get(TARGET_PORT, "")
    is_of_service = tenant_id is not None and profile.get(TENANT) == str(tenant_id)
    if os.environ.get(TARGET_PORT) or not (is_of_service and port.isascii() and port.isdecimal()):
        return int(settings.TARGET_PORT)
    return int(port)


def is_replaceable() -> bool:
    """Return whether there is no profile, or one that `manage.py up` wrote for a service on this machine."""
    try:
        text = get_profile_path().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    is_local = urlsplit(read_profile().get(URL, "")).hostname in (None, *LOCAL_HOSTS)
    return not text.strip() or (text.startswith(HEADER) and is_local)
