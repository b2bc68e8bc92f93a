"""Below /calls/."""

from __future__ import annotations

from django.urls import path

from orchestration.console import bulk, changes, details, exports, lists, request

CALL = "<uuid:tenant_id>/<uuid:service_call_id>/"

urlpatterns = [
    path("", lists.Calls.as_view(), name="calls"),
    path("look/", lists.Look.as_view(), name="calls-look"),
    path("bulk/", bulk.Preview.as_view(), name="calls-bulk"),
    path("bulk/run/", bulk.Run.as_view(), name="calls-bulk-run"),
    path("export.csv", exports.Export.as_view(), {"kind": "csv"}, name="calls-csv"),
    path("export.ndjson", exports.Export.as_view(), {"kind": "ndjson"}, name="calls-ndjson"),
    path("new/", request.NewCall.as_view(), name="new-call"),
    path(f"new/response/{CALL}", request.SentCall.as_view(), name="sent-call"),
    path(CALL, details.Call.as_view(), name="call"),
    path(f"{CALL}curl/", details.Curl.as_view(), name="call-curl"),
    path(f"{CALL}body/request/", details.Body.as_view(), {"which": "request"}, name="call-request-body"),
    path(f"{CALL}body/response/", details.Body.as_view(), {"which": "response"}, name="call-response-body"),
    path(f"{CALL}cancel/", changes.Cancel.as_view(), name="call-cancel"),
    path(f"{CALL}reschedule/", changes.Reschedule.as_view(), name="call-reschedule"),
    path(f"{CALL}run-now/", changes.RunNow.as_view(), name="call-run-now"),
    path(f"{CALL}replay/", changes.Replay.as_view(), name="call-replay"),
    path(f"{CALL}favorite/", changes.Favorite.as_view(), name="call-favorite"),
    path(f"{CALL}tags/", changes.Tags.as_view(), name="call-tags"),
]
