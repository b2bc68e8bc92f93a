from django.urls import path
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from benchmarks.bare_drf.models import Submission


class BareSubmissionSerializer(serializers.Serializer[Submission]):
    name = serializers.CharField(max_length=200)
    requestSpec = serializers.JSONField()  # noqa: N815 - the name in the JSON document
    dueAt = serializers.DateTimeField()  # noqa: N815


class Submissions(APIView):
    def post(self, request: Request) -> Response:
        serializer = BareSubmissionSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        submission = Submission(
            name=serializer.validated_data["name"],
            request_spec=serializer.validated_data["requestSpec"],
            due_at=serializer.validated_data["dueAt"],
        )
        submission.save(force_insert=True)
        return Response({"id": submission.pk, **serializer.data}, status=202)


urlpatterns = [path("submissions", Submissions.as_view())]
