"""Views that ask for confirmation: `get` asks, in the dialog or on a page of its own, and `post` acts."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse

from eventservice.console.base.views import ConsoleView
from eventservice.kernel.errors import Invalid


class ConfirmView(ConsoleView):
    def render_confirmation(
        self, title: str, button: str, *, back_to: str, template: str = "console/confirm.html", **more: Any
    ) -> HttpResponse:
        """Ask for confirmation. `more` holds text, word and danger, and whatever the template needs."""
        context = {
            "title": title,
            "button": button,
            "action": self.request.path,
            "next": self.get_next_url(back_to),
            **more,
        }
        return self.render(context, template)

    def require_typed_word(self, word: str) -> None:
        """Raise Invalid unless the word was typed. The browser checks it too, but a form can be sent without it."""
        if self.request.POST.get("word", "").strip() != word:
            raise Invalid("not_confirmed", f"Nothing was changed. Type “{word}” to confirm.")
