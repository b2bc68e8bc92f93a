"""Every model is registered with the admin, except those that would grant access."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.db import models
from django.test import Client
from django_q.models import Task

from eventservice.adminsite.model_admin import RoleAdmin
from eventservice.db.totals import Total
from orchestration.models import TimerMark
from outbox.models import BrokerQueueEntry
from tests.console.admin_pages import build_list_url
from timers.models import Cell, DispatchPause

NOT_REGISTERED: dict[type[models.Model], str] = {
    Session: "a session's key opens it",
    Permission: "roles give rights, and permissions none",
    ContentType: "Django's own bookkeeping",
    Total: "/metrics shows them",
    Cell: "nobody changes it by hand",
    TimerMark: "the engine deletes it within seconds",
    DispatchPause: "every page of the console shows it",
    BrokerQueueEntry: "the Cluster page and `outbox status` summarize it",
    Task: "it is there as Success and Failure",
}
REGISTERED = sorted(admin.site._registry, key=lambda model: model._meta.label)


def test_every_model_is_registered() -> None:
    assert set(apps.get_models()) - set(admin.site._registry) == set(NOT_REGISTERED)


def test_the_permissions_of_every_model_come_from_roles() -> None:
    assert all(isinstance(made, RoleAdmin) for made in admin.site._registry.values())


def test_every_list_is_shown_and_can_be_searched(admin: Client) -> None:
    for model in REGISTERED:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        for query in ({}, {"q": "something"}, {"q": "01a1ef3f-2005-71e2-87f2-86cb5d38d4b3"}, {"q": "7"}):
            assert admin.get(build_list_url(name, **query)).status_code == 200, (name, query)
