"""A process that nobody has configured says so, because it runs as on a developer's machine."""

from __future__ import annotations

import pytest

from eventservice.runtime.environment import warn_of_default_environment


@pytest.mark.parametrize(
    ("given", "warns"), [({}, True), ({"ENVIRONMENT": " "}, True), ({"ENVIRONMENT": "development"}, False)]
)
def test_a_process_without_an_environment_warns(
    given: dict[str, str], warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_default_environment(given)
    assert ("environment_not_set" in caplog.text) == warns
    assert ("for a developer's machine only" in caplog.text) == warns
