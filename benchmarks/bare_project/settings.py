import json
import os

SECRET_KEY = "benchmark"
INSTALLED_APPS = json.loads(os.environ["BARE_APPS"])
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
Q_CLUSTER = {"orm": "default", "timeout": 60, "retry": 120}
