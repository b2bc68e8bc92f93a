"""Below /api/v1/tenants/<tenant>/."""

from django.urls import path

from eventservice.api import (
    batches,
    converters,  # noqa: F401 (`id` is of paths)
    timers,
)
from eventservice.api import calls as calls

CALL = "service-calls/<id:service_call_id>"

urlpatterns = [
    path("service-calls", calls.ServiceCalls.as_view()),
    path("service-calls/batch", batches.Batch.as_view()),
    path(CALL, calls.ServiceCall.as_view()),
    path(f"{CALL}/cancel", calls.Cancel.as_view()),
    path(f"{CALL}/run-now", calls.RunNow.as_view()),
    path(f"{CALL}/replay", calls.Replay.as_view()),
    # Also a tag with a slash in it.
    path(f"{CALL}/tags/<path:tag>", calls.Tag.as_view()),
    path(f"{CALL}/favorite", calls.Favorite.as_view()),
    path(f"{CALL}/executions", calls.Executions.as_view()),
    path(f"{CALL}/events", calls.Events.as_view()),
    path("timers", timers.Timers.as_view()),
    path("timers/create", timers.CreateTimer.as_view()),
    path("timers/get", timers.GetTimer.as_view()),
    path("timers/update", timers.UpdateTimer.as_view()),
    path("timers/delete", timers.DeleteTimer.as_view()),
]
