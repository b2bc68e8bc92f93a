from cryptography.fernet import Fernet
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Print a new key for ENCRYPTION_KEYS. docs/operations.md explains how to rotate keys without losing secrets."

    # They need settings, and this command creates what may be missing there (manage.py).
    requires_system_checks = []

    def handle(self, *args: object, **options: object) -> None:
        self.stdout.write(Fernet.generate_key().decode())
