"""Below /api/v1/."""

from django.urls import include, path

urlpatterns = [
    path("tenants/<uuid:tenant_id>/", include("orchestration.api.urls")),
]
