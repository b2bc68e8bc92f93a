"""The shapes of calls and timers, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from rest_framework import serializers as s

from eventservice.api.openapi import KEY_PATTERN, FaultSerializer, page_of
from execution.outcome import METHODS, ErrorKind
from orchestration.states import FAVORITE, MAX_TAGS, Delivery, ResponseContract, Status

DURATION = "Such as `90s`, `5m`, `2h`, `1d12h` or `PT90S`"

Base = s.Serializer[Any]


def duration(**options: Any) -> s.Field[Any, Any, Any, Any]:
    return s.CharField(help_text=DURATION, **options)


def timeout() -> s.Field[Any, Any, Any, Any]:
    most = settings.API_MAX_TIMEOUT_SECONDS
    return s.FloatField(min_value=0.1, max_value=most, required=False, allow_null=True)


def labels(**options: Any) -> s.Field[Any, Any, Any, Any]:
    rule = f"At most {MAX_TAGS}, and `{FAVORITE}` beside them"
    return s.ListField(
        child=s.CharField(max_length=64), max_length=MAX_TAGS + 1, required=False, help_text=rule, **options
    )


# --- what is taken --------------------------------------------------------------------------------------------


class RetryPolicyInputSerializer(Base):
    maxAttempts = s.IntegerField(min_value=1, max_value=100, required=False)
    maxAttemptsDuration = duration(required=False, allow_null=True)
    initialInterval = duration(required=False)
    backoffMultiplier = s.FloatField(min_value=1, max_value=100, required=False)
    maxInterval = duration(required=False)


class RequestSpecInputSerializer(Base):
    method = s.ChoiceField(METHODS)
    url = s.CharField(max_length=2048)
    headers = s.DictField(child=s.CharField(allow_blank=True), required=False, allow_null=True)
    body = s.JSONField(required=False, help_text="JSON; a text is sent as it is")


class SubmissionSerializer(Base):
    name = s.CharField(max_length=200)
    requestSpec = RequestSpecInputSerializer()
    dueAt = s.DateTimeField(required=False, allow_null=True, help_text="A past time means now")
    delay = duration(required=False, allow_null=True)
    serviceCallId = s.UUIDField(required=False, allow_null=True)
    tags = labels(allow_null=True)
    namespace = s.CharField(max_length=64, required=False, allow_null=True)
    idempotencyKey = s.RegexField(KEY_PATTERN, required=False, allow_null=True)
    retryPolicy = RetryPolicyInputSerializer(required=False, allow_null=True)
    timeoutSeconds = timeout()
    delivery = s.ChoiceField(Delivery.values, required=False, allow_null=True)


class BatchInputSerializer(Base):
    items = s.ListField(child=SubmissionSerializer(), min_length=1, max_length=settings.API_MAX_BATCH)
    atomic = s.BooleanField(required=False, allow_null=True, help_text="All or none")


class ChangesSerializer(Base):
    name = s.CharField(max_length=200, required=False)
    tags = labels()
    dueAt = s.DateTimeField(required=False, help_text="Only while Scheduled")


class TimerInputSerializer(Base):
    namespace = s.CharField(max_length=64, required=False, allow_null=True)
    id = s.CharField(max_length=255, help_text="Any text; free again when its timer has ended")
    executeAt = s.DateTimeField(help_text="A past time means now")
    callbackUrl = s.CharField(
        max_length=2048, help_text="Is sent a POST, and says in its answer whether it is done"
    )
    payload = s.JSONField(required=False, help_text="Comes with the callback, as `payload`")
    retryPolicy = RetryPolicyInputSerializer(
        required=False, allow_null=True, help_text="None: one attempt, and what `nextExecuteAt` asks for"
    )
    callbackTimeoutSeconds = timeout()


class TimerKeySerializer(Base):
    namespace = s.CharField(max_length=64, required=False, allow_null=True)
    timerId = s.CharField(max_length=255)


class TimerChangesSerializer(TimerKeySerializer):
    executeAt = s.DateTimeField(required=False)
    callbackUrl = s.CharField(max_length=2048, required=False)
    payload = s.JSONField(required=False)
    retryPolicy = RetryPolicyInputSerializer(required=False, allow_null=True)
    callbackTimeoutSeconds = timeout()


# --- what is given --------------------------------------------------------------------------------------------


class RetryPolicySerializer(Base):
    maxAttempts = s.IntegerField()
    maxAttemptsDuration = duration(allow_null=True)
    initialInterval = duration()
    backoffMultiplier = s.FloatField()
    maxInterval = duration()


class RequestSpecSerializer(Base):
    method = s.ChoiceField(METHODS)
    url = s.CharField()
    headers = s.DictField(child=s.CharField(allow_blank=True), help_text="Secret values are masked")
    body = s.JSONField()


class TimerStateSerializer(Base):
    state = s.ChoiceField(["Scheduled", "Reached"])
    dueAt = s.DateTimeField()
    reachedAt = s.DateTimeField(allow_null=True)


class AttemptResponseSerializer(Base):
    status = s.IntegerField()
    headers = s.DictField(child=s.CharField(allow_blank=True), allow_null=True)
    body = s.CharField(allow_null=True, allow_blank=True)
    size = s.IntegerField(allow_null=True)


class AttemptRequestSerializer(Base):
    method = s.ChoiceField(METHODS)
    url = s.CharField()
    headers = s.DictField(child=s.CharField(allow_blank=True))
    body = s.CharField(allow_null=True, allow_blank=True)


class ErrorSerializer(Base):
    kind = s.ChoiceField([kind.value for kind in ErrorKind])
    message = s.CharField(allow_null=True)


class PhasesSerializer(Base):
    dnsMs = s.FloatField(required=False, help_text="Looking up the address")
    connectMs = s.FloatField(required=False)
    tlsMs = s.FloatField(required=False)
    firstByteMs = s.FloatField(
        required=False, help_text="From the start, as `latencyMs`; the others are lengths"
    )


class AttemptSerializer(Base):
    executionId = s.UUIDField()
    attempt = s.IntegerField()
    node = s.UUIDField()
    startedAt = s.DateTimeField()
    finishedAt = s.DateTimeField(allow_null=True)
    request = AttemptRequestSerializer()
    response = AttemptResponseSerializer(allow_null=True)
    error = ErrorSerializer(allow_null=True)
    latencyMs = s.FloatField(allow_null=True)
    phases = PhasesSerializer(allow_null=True, help_text="Where that time went; only what happened")


class CallSerializer(Base):
    serviceCallId = s.UUIDField()
    tenantId = s.UUIDField()
    name = s.CharField()
    status = s.ChoiceField(Status.values)
    namespace = s.CharField()
    timerId = s.CharField(allow_null=True, help_text="Of a durable timer")
    submittedAt = s.DateTimeField()
    dueAt = s.DateTimeField()
    startedAt = s.DateTimeField(allow_null=True)
    finishedAt = s.DateTimeField(allow_null=True)
    tags = s.ListField(child=s.CharField())
    favorite = s.BooleanField()
    correlationId = s.UUIDField()
    replayOf = s.UUIDField(allow_null=True)
    attempts = s.IntegerField(help_text="Made so far, the one under way included")


class SummarySerializer(Base):
    status = s.IntegerField(allow_null=True)
    errorKind = s.CharField(allow_null=True)
    latencyMs = s.FloatField(allow_null=True)


class ListedRequestSerializer(Base):
    method = s.ChoiceField(METHODS)
    url = s.CharField()
    host = s.CharField()


class ListedCallSerializer(CallSerializer):
    request = ListedRequestSerializer()
    outcome = SummarySerializer(allow_null=True)


class ServiceCallSerializer(CallSerializer):
    requestSpec = RequestSpecSerializer()
    outcome = s.DictField(
        allow_null=True, help_text="`responseMeta` or `errorMeta`, or both, of the last attempt"
    )
    idempotencyKey = s.CharField(allow_null=True)
    retryPolicy = RetryPolicySerializer(allow_null=True)
    timeoutSeconds = s.FloatField()
    responseContract = s.ChoiceField(ResponseContract.values)
    delivery = s.ChoiceField(Delivery.values)
    cancelRequested = s.BooleanField()
    timer = TimerStateSerializer(allow_null=True)
    lastAttempt = AttemptSerializer(allow_null=True)


class BatchItemSerializer(Base):
    status = s.IntegerField(help_text="202, 400 or 409")
    serviceCallId = s.UUIDField(allow_null=True)
    location = s.CharField(allow_null=True)
    replayed = s.BooleanField()
    code = s.CharField(allow_null=True)
    detail = s.CharField(allow_null=True)
    errors = FaultSerializer(many=True)  # type: ignore[assignment]  # as in ProblemSerializer


class BatchSerializer(Base):
    items = BatchItemSerializer(many=True)
    accepted = s.IntegerField()
    refused = s.IntegerField()


class EventSerializer(Base):
    id = s.UUIDField()
    type = s.CharField()
    seq = s.IntegerField()
    occurredAt = s.DateTimeField()
    correlationId = s.UUIDField()
    causationId = s.UUIDField(allow_null=True)
    data = s.DictField()  # type: ignore[assignment]  # a serializer has a `data` of its own


class ListedTimerSerializer(Base):
    namespace = s.CharField()
    timerId = s.CharField()
    executeAt = s.DateTimeField(help_text="What the timer was set to")
    dueAt = s.DateTimeField(help_text="When the next attempt is due; after the last, when that was")
    status = s.ChoiceField(Status.values)
    serviceCallId = s.UUIDField()
    attempts = s.IntegerField()
    createdAt = s.DateTimeField()
    finishedAt = s.DateTimeField(allow_null=True)
    outcome = SummarySerializer(allow_null=True)
    callbackUrl = s.CharField()


class TimerSerializer(ListedTimerSerializer):
    payload = s.JSONField()
    retryPolicy = RetryPolicySerializer(allow_null=True)
    callbackTimeoutSeconds = s.FloatField()


CallPage = page_of(ListedCallSerializer, "ServiceCall")
AttemptPage = page_of(AttemptSerializer, "Attempt")
EventPage = page_of(EventSerializer, "Event")
TimerPage = page_of(ListedTimerSerializer, "Timer")
