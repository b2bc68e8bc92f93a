"""Identifiers: UUIDv7, made by the application before the insert, so that keys grow with time."""

import uuid

import uuid6


def new_id() -> uuid.UUID:
    return uuid6.uuid7()
