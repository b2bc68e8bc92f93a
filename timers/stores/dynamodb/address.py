"""The URL of a timer store on DynamoDB: `dynamodb://REGION/TABLE`, with options for credentials and the endpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

# Of AWS, or of an endpoint that has names of its own. Neither has dots, as a host name would.
REGION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
ENDPOINT = "endpoint"


@dataclass(frozen=True, slots=True)
class DynamoDbAddress:
    """The address of a table, with the credentials that it is used with. Without any, boto3 looks for them."""

    region: str
    table: str
    endpoint: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, parts: SplitResult) -> DynamoDbAddress:
        """Parse a URL. Raise ValueError, which quotes nothing of it, if it cannot be used."""
        # A slash that is not encoded, in the secret, makes a port of the secret's beginning.
        if not REGION.fullmatch(parts.netloc.rpartition("@")[2]):
            raise ValueError(
                "the URL must be dynamodb://REGION/TABLE with a region such as eu-central-1; the address of another"
                " endpoint belongs into ?endpoint=, and / in a secret is written as %2F"
            )
        table = parts.path.removeprefix("/")
        if not TABLE_NAME.fullmatch(table):
            raise ValueError("the name of the table must have 3 to 255 letters, digits, '_', '.' and '-'")
        if (parts.username is None) != (parts.password is None):
            raise ValueError("the URL must have both an access key and its secret, or neither")
        return cls(
            parts.hostname or "",
            table,
            _parse_endpoint(parts.query),
            unquote(parts.username) if parts.username else None,
            unquote(parts.password) if parts.password else None,
        )


def _parse_endpoint(query: str) -> str | None:
    if not query:
        return None
    options = parse_qsl(query, keep_blank_values=True)
    if [name for name, _ in options] != [ENDPOINT]:
        raise ValueError("the only option of the URL is endpoint")
    endpoint = options[0][1]
    try:
        parts = urlsplit(endpoint)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ValueError("the endpoint must be an http or https URL")
    return endpoint
