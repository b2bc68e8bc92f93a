"""The WSGI application of the web tier."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "eventservice.settings")

application = get_wsgi_application()
