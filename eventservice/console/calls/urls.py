"""Below /calls/."""

from __future__ import annotations

from django.urls import path

from eventservice.console.calls import bulk_page, call_actions, details_page, export, list_page, request_page

CALL = "<uuid:tenant_id>/<uuid:service_call_id>/"

urlpatterns = [
    path("", list_page.Calls.as_view(), name="calls"),
    path("look/", list_page.Look.as_view(), name="calls-look"),
    path("bulk/", bulk_page.Preview.as_view(), name="calls-bulk"),
    path("bulk/run/", bulk_page.Run.as_view(), name="calls-bulk-run"),
    path("export.csv", export.Export.as_view(), {"kind": "csv"}, name="calls-csv"),
    path("export.ndjson", export.Export.as_view(), {"kind": "ndjson"}, name="calls-ndjson"),
    path("new/", request_page.NewCall.as_view(), name="new-call"),
    path(f"new/response/{CALL}", request_page.SentCall.as_view(), name="sent-call"),
    path(CALL, details_page.Call.as_view(), name="call"),
    path(f"{CALL}curl/", details_page.Curl.as_view(), name="call-curl"),
    path(f"{CALL}body/request/", details_page.Body.as_view(), {"which": "request"}, name="call-request-body"),
    path(
        f"{CALL}body/response/", details_page.Body.as_view(), {"which": "response"}, name="call-response-body"
    ),
    path(f"{CALL}cancel/", call_actions.Cancel.as_view(), name="call-cancel"),
    path(f"{CALL}reschedule/", call_actions.Reschedule.as_view(), name="call-reschedule"),
    path(f"{CALL}run-now/", call_actions.RunNow.as_view(), name="call-run-now"),
    path(f"{CALL}replay/", call_actions.Replay.as_view(), name="call-replay"),
    path(f"{CALL}favorite/", call_actions.Favorite.as_view(), name="call-favorite"),
    path(f"{CALL}tags/", call_actions.Tags.as_view(), name="call-tags"),
]
