from cryptography.fernet import Fernet
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Print a new key for ENCRYPTION_KEYS. docs/operations.md explains how to rotate keys without losing secrets."

    def handle(self, *args: object, **options: object) -> None:
        self.stdout.write(Fernet.generate_key().decode())
