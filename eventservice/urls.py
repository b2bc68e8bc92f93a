from django.contrib import admin
from django.urls import include, path

from eventservice.api.health import livez, readyz
from eventservice.api.metrics import metrics

urlpatterns = [
    path("api/v1/", include("eventservice.api.urls")),
    path("livez", livez),
    path("readyz", readyz),
    path("metrics", metrics),
    path("admin/", admin.site.urls),
    path("", include("eventservice.console.urls")),
]

handler400 = "eventservice.console.base.error_pages.handle_bad_request"
handler500 = "eventservice.console.base.error_pages.handle_server_error"
