"""What every test that drives a browser carries: one worker has them all, with the one system."""

import pytest

BROWSER = [pytest.mark.browser, pytest.mark.xdist_group("browser")]
