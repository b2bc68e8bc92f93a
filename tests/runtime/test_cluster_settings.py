"""A cluster with wrong settings is refused before it starts."""

from typing import Any

import pytest
from pytest_django import Settings

from eventservice.runtime.checks import check_slices


def test_the_shipped_settings_are_valid() -> None:
    assert check_slices() == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"timeout": 1}, "timeout"),
        ({"retry": 1}, "retry"),
        ({"ack_failures": False}, "ack_failures"),
        ({"workers": 1}, "workers"),
        ({"recycle": 500}, "recycle"),
    ],
)
def test_each_wrong_setting_is_named(settings: Settings, change: dict[str, Any], named: str) -> None:
    settings.Q_CLUSTER = {**settings.Q_CLUSTER, **change}
    assert [error.id for error in check_slices() if f"Q_CLUSTER: {named}" in error.msg] == [
        "eventservice.E004"
    ]
