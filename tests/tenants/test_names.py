"""Names of tenants and namespaces are fit for URLs and metrics as they are."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from eventservice.tenants.models import name_rule


@pytest.mark.parametrize("name", ["a", "acme", "acme-2", "a.b_c-d", "0", "x" * 64])
def test_it_takes(name: str) -> None:
    name_rule(name)


@pytest.mark.parametrize("name", ["", "-a", "a-", ".", "Acme", "a b", "a/b", "ä", "x" * 65, "acme\n"])
def test_it_refuses(name: str) -> None:
    with pytest.raises(ValidationError):
        name_rule(name)
