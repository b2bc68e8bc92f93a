"""URLs of the operators' console."""

from __future__ import annotations

from django.urls import path
from django.views.generic import RedirectView

from eventservice.console import (
    audit_log,
    cluster,
    dashboard,
    dispatch,
    event_replay,
    events,
    keys,
    preferences,
    session,
    tenants,
    timer_stores,
    timers,
    webhooks,
)
from eventservice.console.calls import (
    bulk,
    call_actions,
    details_page,
    export,
    list_page,
    request_page,
    suggestions,
    trace_page,
)

app_name = "console"

CALL_KEY = "<uuid:tenant_id>/<uuid:service_call_id>"
CALL = f"calls/{CALL_KEY}"
TENANT = "tenants/<uuid:tenant_id>"
KEY = "keys/<str:key_id>"
EVENT = "events/<int:key>"
ENDPOINT = "webhooks/<uuid:tenant_id>/<uuid:endpoint_id>"

urlpatterns = [
    path("", dashboard.DashboardPage.as_view(), name="dashboard"),
    path("calls/", list_page.CallList.as_view(), name="calls"),
    path("calls/look/", list_page.CallListUpdates.as_view(), name="calls-look"),
    path(
        "calls/suggestions/<str:column>/", suggestions.FilterSuggestions.as_view(), name="calls-suggestions"
    ),
    path("calls/bulk/", bulk.BulkPreview.as_view(), name="calls-bulk"),
    path("calls/bulk/run/", bulk.BulkRunPage.as_view(), name="calls-bulk-run"),
    path("calls/export.csv", export.ExportCalls.as_view(), {"kind": "csv"}, name="calls-csv"),
    path("calls/export.ndjson", export.ExportCalls.as_view(), {"kind": "ndjson"}, name="calls-ndjson"),
    path("calls/new/", request_page.NewCall.as_view(), name="new-call"),
    path(f"calls/new/response/{CALL_KEY}/", request_page.NewCallResponse.as_view(), name="sent-call"),
    path(f"{CALL}/", details_page.CallDetailsPage.as_view(), name="call"),
    path(f"{CALL}/curl/", details_page.CurlCommand.as_view(), name="call-curl"),
    path(
        f"{CALL}/body/request/",
        details_page.DownloadBody.as_view(),
        {"which": "request"},
        name="call-request-body",
    ),
    path(
        f"{CALL}/body/response/",
        details_page.DownloadBody.as_view(),
        {"which": "response"},
        name="call-response-body",
    ),
    path(f"{CALL}/cancel/", call_actions.CancelCall.as_view(), name="call-cancel"),
    path(f"{CALL}/reschedule/", call_actions.RescheduleCall.as_view(), name="call-reschedule"),
    path(f"{CALL}/run-now/", call_actions.RunCallNow.as_view(), name="call-run-now"),
    path(f"{CALL}/replay/", call_actions.ReplayCall.as_view(), name="call-replay"),
    path(f"{CALL}/favorite/", call_actions.ToggleFavorite.as_view(), name="call-favorite"),
    path(f"{CALL}/tags/", call_actions.EditTags.as_view(), name="call-tags"),
    path("traces/<uuid:tenant_id>/<uuid:correlation_id>/", trace_page.TracePage.as_view(), name="trace"),
    path("timers/", timers.TimersPage.as_view(), name="timers"),
    path("timers/stores/", timer_stores.TimerStoresPage.as_view(), name="timer-stores"),
    path("timers/timer/", timers.TimerDetailsPage.as_view(), name="timer"),
    path("events/", events.EventsPage.as_view(), name="events"),
    path("events/replay/", event_replay.ReplayEvents.as_view(), name="replay-events"),
    path(f"{EVENT}/", events.EventDetailsPage.as_view(), name="event"),
    path(f"{EVENT}/retry/", events.RetryEvent.as_view(), name="event-retry"),
    path(f"{EVENT}/skip/", events.SkipEvent.as_view(), name="event-skip"),
    path(f"{EVENT}/park/", events.ParkEvent.as_view(), name="event-park"),
    path("webhooks/", webhooks.WebhooksPage.as_view(), name="webhooks"),
    path("webhooks/new/", webhooks.CreateEndpoint.as_view(), name="new-endpoint"),
    path(f"{ENDPOINT}/", webhooks.EndpointDetailsPage.as_view(), name="endpoint"),
    path(
        f"{ENDPOINT}/deliveries/<uuid:delivery_id>/", webhooks.DeliveryDetailsPage.as_view(), name="delivery"
    ),
    path(
        f"{ENDPOINT}/deliveries/<uuid:delivery_id>/retry/",
        webhooks.RetryDelivery.as_view(),
        name="delivery-retry",
    ),
    path(f"{ENDPOINT}/retry/", webhooks.RetryDeliveries.as_view(), name="endpoint-retry"),
    path(f"{ENDPOINT}/test/", webhooks.SendTestEvent.as_view(), name="endpoint-test"),
    path(f"{ENDPOINT}/enable/", webhooks.EnableEndpoint.as_view(), name="endpoint-enable"),
    path(f"{ENDPOINT}/disable/", webhooks.DisableEndpoint.as_view(), name="endpoint-disable"),
    path(f"{ENDPOINT}/delete/", webhooks.DeleteEndpoint.as_view(), name="endpoint-delete"),
    path(f"{ENDPOINT}/resend/", webhooks.ResendDeliveries.as_view(), name="endpoint-resend"),
    path("tenants/", tenants.TenantsPage.as_view(), name="tenants"),
    path("tenants/new/", tenants.CreateTenant.as_view(), name="new-tenant"),
    path(f"{TENANT}/", tenants.TenantDetailsPage.as_view(), name="tenant"),
    path(f"{TENANT}/limits/", tenants.UpdateLimits.as_view(), name="tenant-limits"),
    path(f"{TENANT}/secret/", tenants.SetSecret.as_view(), name="tenant-secret"),
    path(f"{TENANT}/secret/clear/", tenants.ClearSecret.as_view(), name="tenant-secret-clear"),
    path(f"{TENANT}/activate/", tenants.ActivateTenant.as_view(), name="tenant-activate"),
    path(f"{TENANT}/deactivate/", tenants.DeactivateTenant.as_view(), name="tenant-deactivate"),
    path(f"{TENANT}/namespaces/", tenants.CreateNamespace.as_view(), name="tenant-namespaces"),
    path(f"{TENANT}/keys/new/", keys.CreateKey.as_view(), name="new-key"),
    path(f"{TENANT}/{KEY}/rotate/", keys.RotateKey.as_view(), name="key-rotate"),
    path(f"{TENANT}/{KEY}/revoke/", keys.RevokeKey.as_view(), name="key-revoke"),
    path("keys/", keys.OperatorKeysPage.as_view(), name="operator-keys"),
    path("keys/new/", keys.CreateKey.as_view(), name="new-operator-key"),
    path(f"{KEY}/rotate/", keys.RotateKey.as_view(), name="operator-key-rotate"),
    path(f"{KEY}/revoke/", keys.RevokeKey.as_view(), name="operator-key-revoke"),
    path("cluster/", cluster.ClusterPage.as_view(), name="cluster"),
    path("dispatch/pause/", dispatch.PauseDispatch.as_view(), name="pause-dispatch"),
    path("dispatch/resume/", dispatch.ResumeDispatch.as_view(), name="resume-dispatch"),
    path("audit-log/", audit_log.AuditLogPage.as_view(), name="audit-log"),
    path("preferences/", preferences.PreferencesPage.as_view(), name="preferences"),
    path("login/", session.SignIn.as_view(), name="login"),
    path("logout/", session.SignOut.as_view(), name="sign-out"),
]

# Pages that had another address, by the name of the page that they redirect to.
MOVED = {
    "outbox/": "events",
    "outbox/replay/": "replay-events",
    "outbox/<int:key>/": "event",
    "outbox/webhooks/": "webhooks",
    "outbox/webhooks/new/": "new-endpoint",
    "actions/": "audit-log",
}
urlpatterns += [
    path(address, RedirectView.as_view(pattern_name=f"console:{name}", query_string=True, permanent=True))
    for address, name in MOVED.items()
]
