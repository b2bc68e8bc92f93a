"""The endpoints below /api/v1/."""

from django.urls import path, register_converter
from django.urls.converters import UUIDConverter

from eventservice.api import batches, calls, openapi, system, tenants, timers, traces


class IdConverter(UUIDConverter):
    """A UUID with digits in either case, as in a body or a query."""

    regex = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


register_converter(IdConverter, "id")

TENANT = "tenants/<id:tenant_id>"
CALLS = f"{TENANT}/service-calls"
CALL = f"{CALLS}/<id:service_call_id>"
TIMERS = f"{TENANT}/timers"

urlpatterns = [
    path(CALLS, calls.ServiceCallsView.as_view()),
    path(f"{CALLS}/batch", batches.BatchView.as_view()),
    path(CALL, calls.ServiceCallView.as_view()),
    path(f"{CALL}/cancel", calls.CancelView.as_view()),
    path(f"{CALL}/run-now", calls.RunNowView.as_view()),
    path(f"{CALL}/replay", calls.ReplayView.as_view()),
    path(f"{CALL}/tags/<path:tag>", calls.TagView.as_view()),  # a tag may contain slashes
    path(f"{CALL}/favorite", calls.FavoriteView.as_view()),
    path(f"{CALL}/executions", calls.ExecutionsView.as_view()),
    path(f"{CALL}/events", calls.EventsView.as_view()),
    path(f"{TENANT}/traces/<id:correlation_id>", traces.TraceView.as_view()),
    path(TIMERS, timers.TimersView.as_view()),
    path(f"{TIMERS}/create", timers.CreateTimerView.as_view()),
    path(f"{TIMERS}/get", timers.GetTimerView.as_view()),
    path(f"{TIMERS}/update", timers.UpdateTimerView.as_view()),
    path(f"{TIMERS}/delete", timers.DeleteTimerView.as_view()),
    path("tenants", tenants.TenantsView.as_view()),
    path(TENANT, tenants.TenantView.as_view()),
    path(f"{TENANT}/usage", tenants.TenantUsageView.as_view()),
    path(f"{TENANT}/namespaces", tenants.NamespacesView.as_view()),
    path(f"{TENANT}/namespaces/<str:name>", tenants.NamespaceView.as_view()),
    path(f"{TENANT}/api-keys", tenants.ApiKeysView.as_view()),
    path(f"{TENANT}/api-keys/<str:key_id>/rotate", tenants.RotateKeyView.as_view()),
    path(f"{TENANT}/api-keys/<str:key_id>/revoke", tenants.RevokeKeyView.as_view()),
    path("stats", system.StatsView.as_view()),
    path("shards", system.ShardsView.as_view()),
    path("nodes", system.NodesView.as_view()),
    path("dispatch", system.DispatchView.as_view()),
    path("openapi.json", openapi.openapi, name="openapi"),
    path("docs", openapi.DocsView.as_view(url_name="openapi", authentication_classes=[]), name="docs"),
]
