from __future__ import annotations

import time

from django.core.management.base import BaseCommand, CommandError

from eventservice.kernel.secrets import Reencryption
from eventservice.operators.audit_log import CommandLine, record_action
from eventservice.tenants.directory import reencrypt_signing_secrets
from orchestration.lifecycle import reencrypt_calls
from outbox.publishers.webhook.endpoints import reencrypt_endpoint_secrets

# On SQLite, processes that wait for the write lock retry at intervals. The pause lets them acquire it.
PAUSE_SECONDS = 0.01


class Command(BaseCommand):
    help = (
        "Encrypt all stored secrets with the first of the ENCRYPTION_KEYS, so that the other keys can be removed."
        " The system can be running. An interrupted run can be repeated. Exits with 1 if a secret cannot be decrypted."
    )

    def handle(self, *args: object, **options: object) -> None:
        record_action(CommandLine(), "reencrypt", subject="secrets")
        work = Reencryption()
        tenants = reencrypt_signing_secrets(work)
        endpoints = reencrypt_endpoint_secrets(work)
        calls = 0
        for changed in reencrypt_calls(work):
            calls += changed
            time.sleep(PAUSE_SECONDS)
        self.stdout.write(
            f"Encrypted again: secrets of {tenants} tenants, {endpoints} endpoints and {calls} calls."
        )
        if work.unreadable:
            raise CommandError(
                f"{work.unreadable} secrets cannot be decrypted with any of the ENCRYPTION_KEYS: {', '.join(work.examples)}"
                f"{', …' if work.unreadable > len(work.examples) else ''}. Append the key that"
                " encrypted them, and run this command again."
            )
        self.stdout.write(
            "All secrets are encrypted with the first of the ENCRYPTION_KEYS. The other keys can be removed if every process"
            " was restarted since this key came first: one that was not still encrypts with another."
        )
