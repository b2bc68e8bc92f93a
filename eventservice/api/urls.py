"""Below /api/v1/."""

from django.urls import include, path

from eventservice.api import converters, openapi, system, tenants  # noqa: F401 (`id` is of paths)

TENANT = "tenants/<id:tenant_id>"

urlpatterns = [
    path("tenants", tenants.Tenants.as_view()),
    path(TENANT, tenants.OneTenant.as_view()),
    path(f"{TENANT}/namespaces", tenants.Namespaces.as_view()),
    path(f"{TENANT}/namespaces/<str:name>", tenants.OneNamespace.as_view()),
    path(f"{TENANT}/api-keys", tenants.ApiKeys.as_view()),
    path(f"{TENANT}/api-keys/<str:key_id>/rotate", tenants.RotateKey.as_view()),
    path(f"{TENANT}/api-keys/<str:key_id>/revoke", tenants.RevokeKey.as_view()),
    path(f"{TENANT}/", include("eventservice.api.tenant_urls")),
    path("stats", system.StatsView.as_view()),
    path("shards", system.ShardsView.as_view()),
    path("nodes", system.NodesView.as_view()),
    path("openapi.json", openapi.openapi, name="openapi"),
    path(
        "docs",
        openapi.Docs.as_view(url_name="openapi", authentication_classes=[]),
        name="docs",
    ),
]
