from __future__ import annotations

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from eventservice.kernel.secrets import Reencryption
from eventservice.tenants.directory import reencrypt_signing_secrets
from orchestration.lifecycle import reencrypt_calls
from outbox.publishers.webhook.endpoints import reencrypt_endpoint_secrets

# On SQLite whoever waits for the write lock asks for it now and then: this is when they get it.
PAUSE_SECONDS = 0.01


class Command(BaseCommand):
    help = (
        "Encrypt all that is stored under older ENCRYPTION_KEYS anew under the first, so that the older ones can go."
        " Beside a running system; a run that was broken off is simply started again. Exit code 1 when something"
        " cannot be opened."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        work = Reencryption()
        tenants = reencrypt_signing_secrets(work)
        endpoints = reencrypt_endpoint_secrets(work)
        calls = 0
        for changed in reencrypt_calls(work):
            calls += changed
            time.sleep(PAUSE_SECONDS)
        self.stdout.write(
            f"Encrypted anew: secrets of {tenants} tenants, {endpoints} endpoints, {calls} calls."
        )
        if work.closed:
            raise CommandError(
                f"{work.closed} secrets are under no key of ENCRYPTION_KEYS: {', '.join(work.examples)}"
                f"{', …' if work.closed > len(work.examples) else ''}. Put the key that they are under behind the"
                " others, and run this again."
            )
        self.stdout.write("All that is stored is under the first of the ENCRYPTION_KEYS: the others can go.")
