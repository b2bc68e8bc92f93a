"""Names of tenants and namespaces can be used in URLs and metrics without escaping."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from eventservice.tenants.models import name_rule, namespace_rule


@pytest.mark.parametrize("name", ["a", "acme", "acme-2", "a.b_c-d", "0", "x" * 64])
def test_a_valid_name_is_accepted(name: str) -> None:
    name_rule(name)


@pytest.mark.parametrize("name", ["", "-a", "a-", ".", "Acme", "a b", "a/b", "ä", "x" * 65, "acme\n"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        name_rule(name)


@pytest.mark.parametrize("name", ["a", "acme-2", "x" * 65, "x" * 255])
def test_a_namespace_may_have_a_long_name(name: str) -> None:
    namespace_rule(name)


@pytest.mark.parametrize("name", ["", "-a", "a-", "Acme", "x" * 256, "x" * 254 + "-", "acme\n"])
def test_an_invalid_name_of_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        namespace_rule(name)
