from django.urls import path
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from benchmarks.bare_drf.models import Submission


class Asked(serializers.Serializer[Submission]):
    name = serializers.CharField(max_length=200)
    requestSpec = serializers.JSONField()  # noqa: N815 - the name on the wire
    dueAt = serializers.DateTimeField()  # noqa: N815


class Submissions(APIView):
    def post(self, request: Request) -> Response:
        asked = Asked(data=request.data)
        asked.is_valid(raise_exception=True)
        made = Submission(
            name=asked.validated_data["name"],
            request_spec=asked.validated_data["requestSpec"],
            due_at=asked.validated_data["dueAt"],
        )
        made.save(force_insert=True)
        return Response({"id": made.pk, **asked.data}, status=202)


urlpatterns = [path("submissions", Submissions.as_view())]
