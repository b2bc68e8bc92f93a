"""Settings from environment variables: each is parsed and bounded, and all that are wrong are reported together."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

T = TypeVar("T")

BOOLEANS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}

MIN_SECRET_LENGTH, MIN_DISTINCT_CHARACTERS = 32, 8
# Of the development default, and of those that Django writes into a new project.
PUBLISHED_PREFIXES = ("development-only-", "django-insecure-")

# What Django compares with the host of a request, without its port.
HOST = re.compile(r"\.?[a-z0-9.-]+|\[[a-f0-9.:]+\]", re.IGNORECASE)

# Part of the names of slots, which have 40 characters with the role. The role follows a slash.
MAX_CLUSTER_NAME_LENGTH = 29
CLUSTER_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_CLUSTER_NAME_LENGTH - 1}}}")
CLUSTER_NAME_RULE = f"1 to {MAX_CLUSTER_NAME_LENGTH} letters (a-z, A-Z), digits, dots, dashes and underscores, beginning with a letter or digit"

# The variable that names another settings file than `.env` in the folder of manage.py.
ENV_FILE = "ENV_FILE"


def load_env_file(folder: Path, variables: MutableMapping[str, str] = os.environ) -> None:
    """Add the variables of the settings file, so that commands have the settings of the service.

    What the environment has already stays as it is, also if it is blank. Raise ImproperlyConfigured for a file that cannot
    be read or that belongs to another user than root, who runs this, unless the settings with the SECRET_KEY have come from
    the environment, and for one with a line that is wrong.
    """
    path = get_env_path(folder, variables)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        if variables.get(ENV_FILE, "").strip():
            raise ImproperlyConfigured(f"{ENV_FILE}: there is no file {path}.") from None
        return
    except (OSError, UnicodeDecodeError) as error:
        if variables.get("SECRET_KEY"):
            return
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ImproperlyConfigured(
            f"The settings file {path} cannot be read ({reason}). Run this as the user of the service."
        ) from None
    owner = path.stat().st_uid
    if os.geteuid() == 0 and owner != 0 and not variables.get("SECRET_KEY"):
        raise ImproperlyConfigured(
            f"The settings file {path} belongs to {_name_user(owner)}, and root would create files that this user cannot write. "
            f"Run this as that user, for example with `sudo -u {_name_user(owner)}`."
        )
    for name, value in parse_env_file(text, path).items():
        variables.setdefault(name, value)


def _name_user(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"#{user_id}"  # as sudo takes it


def get_env_path(folder: Path, variables: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the settings file, whether it exists or not."""
    return folder / Path(variables.get(ENV_FILE, "").strip() or ".env").expanduser()


def parse_env_file(text: str, path: Path) -> dict[str, str]:
    """Return the variables of a settings file.

    Raise ImproperlyConfigured with all lines that are no assignment, and all that set a name once more: a shell takes the
    last value, other programs the first.
    """
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    malformed, repeated = [], []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            pair = _parse_assignment(line)
        except ValueError:
            # The line may contain a secret, so it is not quoted.
            malformed.append(f"{path}, line {number} is not NAME=value.")
            continue
        if pair is None:
            continue
        name, value = pair
        if name in lines:
            repeated.append(f"{path}, line {number}: {name} is already set in line {lines[name]}.")
        else:
            values[name], lines[name] = value, number
    if malformed:
        malformed.append("A value with spaces needs quotation marks.")
    if repeated:
        repeated.append("Remove the lines that do not apply.")
    if malformed or repeated:
        raise ImproperlyConfigured("\n".join([*malformed, *repeated]))
    return values


def _parse_assignment(line: str) -> tuple[str, str] | None:
    """Parse NAME=value as a shell does, but without expansions. Return None for a line that is blank or a comment.

    Raise ValueError for any other line.
    """
    if not line.strip() or line.lstrip().startswith("#"):
        return None
    stream = StringIO(line)
    lexer = shlex.shlex(stream, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    word = lexer.get_token()  # raises ValueError if a quotation mark is not closed
    word = lexer.get_token() if word == "export" else word
    name, equals, value = (word or "").partition("=")
    rest = stream.read().strip()
    if not (equals and name.isidentifier()) or (rest and not rest.startswith("#")):
        raise ValueError
    return name, value


class Environment:
    """Reads variables and collects what is wrong with them, until `check` refuses to start with the whole list.

    A variable that is unset or blank has its default.
    """

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self._variables = variables
        self._problems: list[str] = []
        # The variables that were read, whether they are set or not.
        self.names: set[str] = set()

    def check(self) -> None:
        """Raise ImproperlyConfigured, with every problem that was found, if there is any."""
        if self._problems:
            raise ImproperlyConfigured("Invalid environment variables:\n  " + "\n  ".join(self._problems))

    def report(self, problem: str) -> None:
        """Add a problem: a sentence that names the variable."""
        self._problems.append(problem)

    def refuse(self, name: str, expected: str) -> None:
        """Report that a variable must be something else than it is."""
        self.report(f"{name} must be {expected}, not {self._variables.get(name, '')!r}")

    def require(self, name: str, value: object, expected: str) -> None:
        """Report an empty value, which production must not have."""
        if not value:
            self.report(f"{name} must be set when ENVIRONMENT is production: expected {expected}")

    def string(self, name: str, default: str = "", *, max_length: int | None = 10_000) -> str:
        def parse(raw: str) -> str:
            if max_length is not None and len(raw) > max_length:
                raise ValueError
            return raw

        return self._read(name, default, parse, f"a string of at most {max_length} characters")

    def cluster_name(self, name: str, default: str) -> str:
        """Return the name of a cluster. A blank one is refused: the default would make this cluster a standby of others."""

        def parse(raw: str) -> str:
            if CLUSTER_NAME.fullmatch(raw) is None:
                raise ValueError
            return raw

        if name in self._variables and not self._variables[name].strip():
            self.refuse(name, f"unset, or {CLUSTER_NAME_RULE}")
        return self._read(name, default, parse, CLUSTER_NAME_RULE)

    def secret(self, name: str, development: str, *, production: bool) -> str:
        """Return a value that has a well-known default in development and must be set in production."""
        value = self.string(name)
        if production:
            self.require(name, value, "a long random string")
            if value and (weakness := find_weakness(value, development)):
                self.report(f"{name} must be a long random string when ENVIRONMENT is production: {weakness}")
        return value or development

    def integer(self, name: str, default: int, *, minimum: int = 0, maximum: int = 2**31 - 1) -> int:
        expected = f"an integer between {minimum} and {maximum}"
        return self._read(name, default, lambda raw: _check_range(int(raw), minimum, maximum), expected)

    def seconds(
        self, name: str, default: float, *, minimum: float = 0.001, maximum: float = 86_400.0
    ) -> float:
        expected = f"a number of seconds between {minimum} and {maximum}"
        return self._read(name, default, lambda raw: _check_range(float(raw), minimum, maximum), expected)

    def boolean(self, name: str, default: bool) -> bool:
        def parse(raw: str) -> bool:
            if raw.lower() not in BOOLEANS:
                raise ValueError
            return BOOLEANS[raw.lower()]

        return self._read(name, default, parse, "true or false")

    def choice(self, name: str, default: str, choices: Sequence[str]) -> str:
        def parse(raw: str) -> str:
            if raw not in choices:
                raise ValueError
            return raw

        return self._read(name, default, parse, "one of " + ", ".join(choices))

    def strings(
        self,
        name: str,
        default: Sequence[str] = (),
        *,
        check: Callable[[str], object] = str,
        separator: str = ",",
    ) -> list[str]:
        """Return the items of a list, which is separated by commas unless another separator is given.

        `check` raises ValueError for an item that is wrong. Its message is shown, so it must not contain a secret.
        """

        def split(raw: str) -> list[str]:
            return [item.strip() for item in raw.split(separator) if item.strip()]

        items = self._read(name, list(default), split, "a list")
        for number, item in enumerate(items, start=1):
            try:
                check(item)
            except ValueError as problem:
                self.report(f"{name}, item {number}: {problem}")
        return items

    def parse_items(
        self,
        name: str,
        default: Sequence[str],
        parse: Callable[[str], T],
        check: Callable[[list[T]], object],
        *,
        separator: str = ",",
    ) -> list[T]:
        """Return the items of a list as `strings` does, parsed.

        `parse` raises ValueError for an item that is wrong, and `check` for a list that is. Their messages are shown, so
        they must not contain a secret.
        """
        parsed: list[T] = []
        self.strings(name, default, check=lambda item: parsed.append(parse(item)), separator=separator)
        try:
            check(parsed)
        except ValueError as problem:
            self.report(f"{name}: {problem}")
        return parsed

    def _read(self, name: str, default: T, parse: Callable[[str], T], expected: str) -> T:
        self.names.add(name)
        raw = self._variables.get(name, "").strip()
        if not raw:
            return default
        try:
            return parse(raw)
        except ValueError:
            self.refuse(name, expected)
            return default


def _check_range(value: T, minimum: Any, maximum: Any) -> T:
    if not minimum <= value <= maximum:
        raise ValueError
    return value


def find_weakness(secret: str, published: str) -> str | None:
    """Return what makes a secret easy to guess, without quoting it, or None."""
    if secret == published or secret.startswith(PUBLISHED_PREFIXES):
        return "this one is published in source code; use the output of `openssl rand -hex 32`"
    if len(secret) < MIN_SECRET_LENGTH:
        return f"this one has {len(secret)} characters, expected at least {MIN_SECRET_LENGTH}"
    if len(set(secret)) < MIN_DISTINCT_CHARACTERS:
        return "this one repeats a few characters; use the output of `openssl rand -hex 32`"
    return None


def check_encryption_key(key: str) -> None:
    """Raise ValueError, without quoting it, for what is no key: a key with a typing error is still nearly a secret."""
    from cryptography.fernet import Fernet  # slow to import, and development needs no keys

    try:
        Fernet(key)
    except ValueError:
        raise ValueError("not a valid key: expected the output of `manage.py newkey`") from None


def check_host(name: str) -> None:
    """Raise ValueError for an entry of ALLOWED_HOSTS that no request could have as its host."""
    if name != "*" and HOST.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} must be a host name without scheme or port, a domain as '.calls.example', or an address (IPv6 in"
            " brackets)"
        )


def check_production_host(name: str) -> None:
    """Raise ValueError for an entry of ALLOWED_HOSTS that accepts any host name, or none."""
    if "*" in name:
        raise ValueError(
            f"{name!r} is refused in production: name the hosts, or a domain as '.calls.example'"
        )
    check_host(name)
