"""Tags are compared byte by byte, and a call has each tag once."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from tests.factories import ServiceCallFactory, ServiceCallTagFactory

pytestmark = pytest.mark.django_db


def test_a_call_has_each_tag_once() -> None:
    call = ServiceCallFactory()
    of_call = {"tenant_id": call.tenant_id, "service_call_id": call.service_call_id}
    ServiceCallTagFactory(**of_call, tag="urgent")
    with pytest.raises(IntegrityError), transaction.atomic():
        ServiceCallTagFactory(**of_call, tag="urgent")


def test_tags_that_differ_in_case_or_accent_are_different_tags() -> None:
    call = ServiceCallFactory()
    different = ["cafe", "Cafe", "café", "☕"]
    for tag in different:
        ServiceCallTagFactory(tenant_id=call.tenant_id, service_call_id=call.service_call_id, tag=tag)

    for tag in different:
        assert [row.tag for row in call.tags.filter(tag=tag)] == [tag]
