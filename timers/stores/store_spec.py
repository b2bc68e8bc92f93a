"""The items of `TIMER_STORES`: timer stores by their names, each with a URL whose scheme decides the kind of store.

Settings import this module, so it imports nothing of Django and no client library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

# The packages of timers.stores, by the schemes of their URLs. Those of SQL databases are SQLAlchemy's; it has no
# scheme for TiDB, whose table differs from MySQL's.
STORES = {
    "postgresql+psycopg": "sql",
    "mysql+pymysql": "sql",
    "mariadb+pymysql": "sql",
    "tidb+pymysql": "sql",
    "oracle+oracledb": "sql",
    "mssql+pymssql": "sql",
    "mongodb": "mongodb",
    "mongodb+srv": "mongodb",
    "dynamodb": "dynamodb",
    "cassandra": "cassandra",
    "cassandra+tls": "cassandra",
}
# The Python packages that each scheme needs, as they are imported.
LIBRARIES = {
    "postgresql+psycopg": ("sqlalchemy", "psycopg"),
    "mysql+pymysql": ("sqlalchemy", "pymysql"),
    "mariadb+pymysql": ("sqlalchemy", "pymysql"),
    "tidb+pymysql": ("sqlalchemy", "pymysql"),
    "oracle+oracledb": ("sqlalchemy", "oracledb"),
    "mssql+pymssql": ("sqlalchemy", "pymssql"),
    "mongodb": ("pymongo",),
    "mongodb+srv": ("pymongo", "dns"),
    "dynamodb": ("boto3",),
    "cassandra": ("cassandra",),
    "cassandra+tls": ("cassandra",),
}

SEPARATOR = ";"
STORE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """One item of `TIMER_STORES`: a name that the operator chose, and a URL. Its representation contains no secret."""

    name: str
    scheme: str
    url: str = field(repr=False)

    @classmethod
    def parse(cls, item: str) -> StoreSpec:
        """Parse `name=url`. Raise ValueError, without quoting the URL, for anything else: it may contain a password."""
        name, separator, url = item.partition("=")
        if not separator or not STORE_NAME.fullmatch(name):
            # A semicolon in a password, which must be written as %3B, makes an item of the rest of the URL.
            raise ValueError(
                "expected name=url, where the name has up to 32 lowercase letters, digits, - and _ and begins with a letter"
            )
        try:
            parts = urlsplit(url)
            has_place = bool(parts.netloc and parts.path.strip("/"))
        except ValueError:
            raise ValueError(f"{name}: the URL cannot be read") from None
        if parts.scheme not in STORES:
            raise ValueError(f"{name}: the scheme {parts.scheme!r} is not one of {', '.join(STORES)}")
        if not has_place:
            raise ValueError(f"{name}: the URL must name a host and a database: scheme://host/database")
        if parts.fragment:
            raise ValueError(f"{name}: the URL has a fragment (#…): write # as %23")
        return cls(name, parts.scheme, url)

    @property
    def kind(self) -> str:
        """The package of timers.stores that implements it."""
        return STORES[self.scheme]

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)


def check_store_names(specs: Sequence[StoreSpec]) -> None:
    """Raise ValueError if two stores have the same name."""
    names = [spec.name for spec in specs]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two stores are called {', '.join(sorted(repeated))}")
