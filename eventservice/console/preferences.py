"""The preferences of a user: the time zone in which the console shows times. They are stored in the browser."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from eventservice.console.base.time_zone import (
    find_browser_zone,
    find_chosen_zone,
    find_zone,
    get_zone_name,
    render_zone_options,
    store_chosen_zone,
)
from eventservice.console.base.views import ConsoleView
from eventservice.db.now import db_now
from eventservice.operators.roles import Role


class PreferencesPage(ConsoleView):
    template = "console/preferences.html"
    write_role = Role.VIEWER  # a cookie changes, and nothing else

    def get(self, request: HttpRequest) -> HttpResponse:
        return self._show()

    def post(self, request: HttpRequest) -> HttpResponse:
        name = request.POST.get("zone", "")
        if name and find_zone(name) is None:
            return self._show(error="Choose a time zone from the list.", status=400)
        self.report_success("Preferences saved.")
        response = self.redirect_to("console:preferences")
        store_chosen_zone(response, name)
        return response

    def _show(self, *, error: str = "", status: int = 200) -> HttpResponse:
        chosen, browser = find_chosen_zone(self.request), find_browser_zone(self.request)
        context = {
            "now": db_now(),
            "chosen": chosen,
            "browser_zone": get_zone_name(browser) if browser else "",
            "zone_options": render_zone_options(get_zone_name(chosen) if chosen else ""),
            "error": error,
        }
        return self.render(context, status=status)
