"""The navigation of the console has a link for every section."""

from __future__ import annotations

import re

from django.conf import settings

from eventservice.console.base.views import ConsoleView
from eventservice.console.urls import urlpatterns


def test_every_section_of_a_page_is_linked() -> None:
    template = (settings.BASE_DIR / "templates" / "console" / "_navigation.html").read_text()
    views = [getattr(pattern.callback, "view_class", None) for pattern in urlpatterns]
    sections = {view.nav for view in views if view is not None and issubclass(view, ConsoleView)}
    assert sections - {""} == set(re.findall(r'nav == "([\w-]+)"', template))
