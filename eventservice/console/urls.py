"""The operators' pages. Those of calls are in eventservice.console.calls."""

from __future__ import annotations

from django.urls import include, path

from eventservice.console import (
    audit_log,
    dashboard,
    keys,
    outbox,
    outbox_replay,
    session,
    tenants,
    timers,
    webhooks,
)

app_name = "console"

TENANT = "tenants/<uuid:tenant_id>"
KEY = "keys/<str:key_id>"
EVENT = "outbox/<int:key>"
ENDPOINT = "outbox/webhooks/<uuid:tenant_id>/<uuid:endpoint_id>"

urlpatterns = [
    path("", dashboard.Dashboard.as_view(), name="dashboard"),
    path("calls/", include("eventservice.console.calls.urls")),
    path("timers/", timers.Timers.as_view(), name="timers"),
    path("outbox/", outbox.Outbox.as_view(), name="outbox"),
    path("outbox/replay/", outbox_replay.Replay.as_view(), name="outbox-replay"),
    path("outbox/webhooks/", webhooks.Webhooks.as_view(), name="webhooks"),
    path("outbox/webhooks/new/", webhooks.NewEndpoint.as_view(), name="new-endpoint"),
    path(f"{ENDPOINT}/enable/", webhooks.EnableEndpoint.as_view(), name="endpoint-enable"),
    path(f"{ENDPOINT}/disable/", webhooks.DisableEndpoint.as_view(), name="endpoint-disable"),
    path(f"{ENDPOINT}/remove/", webhooks.RemoveEndpoint.as_view(), name="endpoint-remove"),
    path(f"{ENDPOINT}/send-again/", webhooks.SendAgain.as_view(), name="endpoint-send-again"),
    path(f"{EVENT}/", outbox.Event.as_view(), name="event"),
    path(f"{EVENT}/retry/", outbox.Retry.as_view(), name="event-retry"),
    path(f"{EVENT}/skip/", outbox.Skip.as_view(), name="event-skip"),
    path(f"{EVENT}/park/", outbox.Park.as_view(), name="event-park"),
    path("tenants/", tenants.Tenants.as_view(), name="tenants"),
    path("tenants/new/", tenants.NewTenant.as_view(), name="new-tenant"),
    path(f"{TENANT}/", tenants.OneTenant.as_view(), name="tenant"),
    path(f"{TENANT}/limits/", tenants.Limits.as_view(), name="tenant-limits"),
    path(f"{TENANT}/secret/", tenants.Secret.as_view(), name="tenant-secret"),
    path(f"{TENANT}/secret/clear/", tenants.ClearSecret.as_view(), name="tenant-secret-clear"),
    path(f"{TENANT}/activate/", tenants.Activate.as_view(), name="tenant-activate"),
    path(f"{TENANT}/deactivate/", tenants.Deactivate.as_view(), name="tenant-deactivate"),
    path(f"{TENANT}/namespaces/", tenants.Namespaces.as_view(), name="tenant-namespaces"),
    path(f"{TENANT}/keys/new/", keys.NewKey.as_view(), name="new-key"),
    path(f"{TENANT}/{KEY}/rotate/", keys.RotateKey.as_view(), name="key-rotate"),
    path(f"{TENANT}/{KEY}/revoke/", keys.RevokeKey.as_view(), name="key-revoke"),
    path("keys/", keys.OperatorKeys.as_view(), name="operator-keys"),
    path("keys/new/", keys.NewKey.as_view(), name="new-operator-key"),
    path(f"{KEY}/rotate/", keys.RotateKey.as_view(), name="operator-key-rotate"),
    path(f"{KEY}/revoke/", keys.RevokeKey.as_view(), name="operator-key-revoke"),
    path("actions/", audit_log.Actions.as_view(), name="actions"),
    path("login/", session.SignIn.as_view(), name="login"),
    path("logout/", session.SignOut.as_view(), name="sign-out"),
]
