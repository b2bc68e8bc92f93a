"""The shapes of tenants, keys and operations, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers as s

from eventservice.api.openapi import page_of
from eventservice.tenants.keys import MAX_LIFETIME
from eventservice.tenants.models import ApiKey

Base = s.Serializer[Any]
NAME_PATTERN = r"^[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?$"


class LimitsSerializer(Base):
    active = s.BooleanField(required=False)
    maxInFlight = s.IntegerField(min_value=1, max_value=100_000, required=False)
    maxPending = s.IntegerField(min_value=1, max_value=100_000_000, required=False)
    requestsPerMinute = s.IntegerField(min_value=1, max_value=100_000_000, required=False)
    allowedHosts = s.ListField(
        child=s.CharField(max_length=253),
        max_length=200,
        required=False,
        help_text="Names or addresses, each without scheme, port or `*`; none: any host",
    )
    secretHeaders = s.ListField(child=s.CharField(max_length=253), max_length=200, required=False)
    signingSecret = s.CharField(required=False, allow_blank=True, help_text="`whsec_…`; empty: do not sign")


class TenantInputSerializer(LimitsSerializer):
    name = s.RegexField(NAME_PATTERN, max_length=64)


class TenantSerializer(Base):
    tenantId = s.UUIDField()
    name = s.CharField()
    active = s.BooleanField()
    createdAt = s.DateTimeField()
    maxInFlight = s.IntegerField()
    maxPending = s.IntegerField()
    requestsPerMinute = s.IntegerField()
    allowedHosts = s.ListField(child=s.CharField())
    secretHeaders = s.ListField(child=s.CharField())
    signs = s.BooleanField(help_text="Whether requests are signed: it has a signing secret")


class NamespaceInputSerializer(Base):
    name = s.RegexField(NAME_PATTERN, max_length=64)
    numShards = s.IntegerField(min_value=1, max_value=4096, required=False, allow_null=True)


class NamespaceSerializer(Base):
    name = s.CharField()
    numShards = s.IntegerField()
    createdAt = s.DateTimeField()


class KeyInputSerializer(Base):
    name = s.CharField(max_length=100, required=False, allow_null=True)
    scopes = s.ListField(child=s.ChoiceField(ApiKey.Scope.values), min_length=1, max_length=3)
    expiresAt = s.DateTimeField(
        required=False,
        allow_null=True,
        help_text=f"In the future, and within {MAX_LIFETIME.days} days from now",
    )


class RotationSerializer(Base):
    overlap = s.CharField(required=False, allow_null=True, help_text="How long the old key goes on: `24h`")


class KeySerializer(Base):
    keyId = s.CharField()
    name = s.CharField(allow_blank=True)
    scopes = s.ListField(child=s.ChoiceField(ApiKey.Scope.values))
    createdAt = s.DateTimeField()
    expiresAt = s.DateTimeField(allow_null=True)
    revokedAt = s.DateTimeField(allow_null=True)
    lastUsedAt = s.DateTimeField(allow_null=True)
    successor = s.CharField(allow_null=True, help_text="The `keyId` of the key that it was rotated into")


class NewKeySerializer(KeySerializer):
    key = s.CharField(help_text="Shown this once")


class ThroughputSerializer(Base):
    perSecond = s.FloatField()
    ended = s.IntegerField()


class OutcomesSerializer(Base):
    byStatus = s.DictField(child=s.IntegerField())
    byErrorKind = s.DictField(child=s.IntegerField())


class LatenessSerializer(Base):
    p50 = s.FloatField(allow_null=True)
    p95 = s.FloatField(allow_null=True)
    p99 = s.FloatField(allow_null=True)
    sampled = s.IntegerField()


class StatsSerializer(Base):
    windowSeconds = s.FloatField()
    throughput = ThroughputSerializer()
    outcomes = OutcomesSerializer()
    latenessMs = LatenessSerializer()
    running = s.IntegerField()
    backlog = s.DictField(child=s.IntegerField())
    oldestOverdueSeconds = s.FloatField()


class ShardSerializer(Base):
    shardId = s.IntegerField()
    version = s.IntegerField()
    ownerId = s.UUIDField(allow_null=True)
    claimedAt = s.DateTimeField(allow_null=True)
    leaseUntil = s.DateTimeField(allow_null=True)
    owned = s.BooleanField()
    metadata = s.DictField()


class NodeSerializer(Base):
    nodeId = s.UUIDField()
    role = s.CharField()
    hostname = s.CharField()
    processId = s.IntegerField()
    startedAt = s.DateTimeField()
    leaseUntil = s.DateTimeField()
    live = s.BooleanField()
    inFlight = s.IntegerField()


TenantPage = page_of(TenantSerializer, "Tenant")
NamespacePage = page_of(NamespaceSerializer, "Namespace")
KeyPage = page_of(KeySerializer, "ApiKey")
ShardPage = page_of(ShardSerializer, "Shard")
NodePage = page_of(NodeSerializer, "Node")
