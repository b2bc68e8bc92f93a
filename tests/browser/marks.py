"""The marks of all browser tests. One worker runs them all, since they share one system."""

import pytest

BROWSER = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
