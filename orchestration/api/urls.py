"""Below /api/v1/tenants/<tenant>/."""

from django.urls import path

from orchestration.api import service_calls

urlpatterns = [
    path("service-calls", service_calls.ServiceCalls.as_view()),
    path("service-calls/<uuid:service_call_id>", service_calls.ServiceCallDetail.as_view()),
]
