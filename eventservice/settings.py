"""Django's settings. A deployment configures them by environment variables (docs/operations.md), checked at start."""

from ipaddress import ip_network
from pathlib import Path

from eventservice.db.configuration import get_default_poll_seconds, read_database
from eventservice.db.dialects.configuration import Waits
from eventservice.kernel.env import (
    Environment,
    check_encryption_key,
    check_host,
    check_production_host,
    find_weakness,
    load_env_file,
)
from eventservice.kernel.faults import check_faults
from eventservice.kernel.logging import build_logging_config
from execution.addresses import LOOPBACK, check_entry
from outbox.publisher_spec import PublisherSpec, check_names
from timers.stores.store_spec import SEPARATOR, StoreSpec, check_store_names

BASE_DIR = Path(__file__).resolve().parent.parent

load_env_file(BASE_DIR)
env = Environment()

ENVIRONMENT = env.choice("ENVIRONMENT", "development", ("development", "production"))
PRODUCTION = ENVIRONMENT == "production"
DEBUG = env.boolean("DEBUG", False)
DEVELOPMENT_KEY = "development-only-" + "k" * 40
SECRET_KEY = env.secret("SECRET_KEY", DEVELOPMENT_KEY, production=PRODUCTION)
# Keys that the SECRET_KEY has replaced: what was signed or hashed with them remains valid.
SECRET_KEY_FALLBACKS = env.strings("SECRET_KEY_FALLBACKS")
# Fernet keys, as `manage.py newkey` prints them, the newest first: the first encrypts, and all of them decrypt.
ENCRYPTION_KEYS = env.strings("ENCRYPTION_KEYS", check=check_encryption_key)
ALLOWED_HOSTS = env.strings(
    "ALLOWED_HOSTS",
    [] if PRODUCTION else ["localhost", "127.0.0.1", "[::1]", "testserver"],
    check=check_production_host if PRODUCTION else check_host,
)
CSRF_TRUSTED_ORIGINS = env.strings("CSRF_TRUSTED_ORIGINS")
CSRF_FAILURE_VIEW = "eventservice.console.base.csrf.csrf_failure"
if PRODUCTION:
    env.require("ENCRYPTION_KEYS", ENCRYPTION_KEYS, "the output of `manage.py newkey`")
    env.require("ALLOWED_HOSTS", ALLOWED_HOSTS, "the host names that clients use, comma-separated")
    for fallback in SECRET_KEY_FALLBACKS:
        if weakness := find_weakness(fallback, DEVELOPMENT_KEY):
            env.report(f"SECRET_KEY_FALLBACKS must be long random strings in production: {weakness}")
    if DEBUG:
        env.refuse("DEBUG", "false or unset when ENVIRONMENT is production")
check_faults(env, production=PRODUCTION)
# The ports on which `manage.py up` listens.
PORT = env.integer("PORT", 8000, minimum=1, maximum=65_535)
TARGET_PORT = env.integer("TARGET_PORT", 9000, minimum=1, maximum=65_535)

INSTALLED_APPS = [
    # Before the apps whose commands (createsuperuser, qcluster, …) it replaces.
    "eventservice",
    "eventservice.apps.ConsoleAdminConfig",  # django.contrib.admin
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "django_q",
    "eventservice.tenants",
    "orchestration",
    "timers",
    "execution",
    "outbox",
]

MIDDLEWARE = [
    "eventservice.api.http_metrics.HttpMetricsMiddleware",
    "eventservice.api.correlation.CorrelationMiddleware",
    # These set headers of every response, so they come before those that answer requests.
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "eventservice.console.base.csp.ContentSecurityPolicyMiddleware",
    "eventservice.api.hosts.HostMiddleware",
    "eventservice.api.problems.ProblemMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

# Only signed-in users see messages, so they need no cookie of their own, whose signer each API request would create.
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"

ROOT_URLCONF = "eventservice.urls"
WSGI_APPLICATION = "eventservice.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# How long processes and the database wait for each other: docs/waits.md explains the order, and a check asserts it.
CONNECT_SECONDS = env.integer("DB_CONNECT_SECONDS", 3, minimum=2, maximum=60)
# The database ends the transaction of a frozen process after this time, so that its locks are released.
IDLE_TRANSACTION_SECONDS = env.integer("DB_IDLE_TRANSACTION_SECONDS", 15, minimum=1, maximum=3600)
# An engine that waits for a lock sends no heartbeat: see NODE_LEASE_SECONDS. SQLite has a timeout of its own.
LOCK_SECONDS = env.integer("DB_LOCK_SECONDS", 4, minimum=1, maximum=3600)
STATEMENT_SECONDS = env.integer("DB_STATEMENT_SECONDS", 6, minimum=1, maximum=3600)

DATABASE_WAITS = Waits(CONNECT_SECONDS, LOCK_SECONDS, STATEMENT_SECONDS, IDLE_TRANSACTION_SECONDS)

DATABASES = {"default": read_database(env, BASE_DIR, DATABASE_WAITS)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# A slice (eventservice.runtime.cluster) runs for SLICE_SECONDS, and one of its steps may wait for a lock. A worker that
# makes no progress for FROZEN_SECONDS (it begins neither a step nor a statement) is declared frozen and killed, so one
# wait for the database must be shorter. A worker that stops may take SHUTDOWN_SECONDS more for its attempts to finish. Its
# task must not be given to another worker before (retry).
SLICE_SECONDS = env.integer("SLICE_SECONDS", 7, minimum=1, maximum=60)
SHUTDOWN_SECONDS = env.integer("SHUTDOWN_SECONDS", 25, minimum=0, maximum=600)
FROZEN_SECONDS = SLICE_SECONDS + LOCK_SECONDS + 5
Q_CLUSTER = {
    "name": "eventservice",
    # Also part of the names of slots: see docs/decisions/0001. django-q2 reads its own variable too, and refuses a name that
    # is not the one here.
    "cluster_name": env.cluster_name("Q_CLUSTER_NAME", env.cluster_name("CLUSTER_NAME", "eventservice")),
    "orm": "default",
    "broker_class": "eventservice.runtime.broker.PatientBroker",
    "workers": 2,
    "timeout": FROZEN_SECONDS,
    "retry": FROZEN_SECONDS + SHUTDOWN_SECONDS + 25,
    "max_attempts": 2,
    "ack_failures": True,
    "save_limit": -1,
    "recycle": 10**9,
    "poll": 2.0,
    "guard_cycle": 1.0,
    "catch_up": False,
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True
FORMAT_MODULE_PATH = "eventservice.formats"

STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "data" / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
WHITENOISE_USE_FINDERS = not PRODUCTION
LOGIN_URL = "console:login"
LOGIN_REDIRECT_URL = "console:dashboard"
SESSION_COOKIE_AGE = 12 * 3600

# Proxies whose X-Forwarded-For says which address a request comes from.
TRUSTED_PROXIES = env.strings(
    "TRUSTED_PROXIES", ["127.0.0.0/8", "::1"], check=lambda entry: ip_network(entry, strict=False)
)

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PRODUCTION
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_PROXY_SSL_HEADER = (
    ("HTTP_X_FORWARDED_PROTO", "https") if env.boolean("TRUST_FORWARDED_PROTO", False) else None
)
X_FRAME_OPTIONS = "DENY"

LOG_LEVEL = env.choice("LOG_LEVEL", "INFO", ("DEBUG", "INFO", "WARNING", "ERROR"))
LOG_FORMAT = env.choice("LOG_FORMAT", "json" if PRODUCTION else "console", ("json", "console"))
LOGGING = build_logging_config(LOG_LEVEL, LOG_FORMAT)
# Who gets the events besides the tenants' webhook endpoints, which always do.
PUBLISHERS = env.parse_items(
    "PUBLISHERS",
    ["webhook"] if PRODUCTION else ["log", "webhook"],
    PublisherSpec.parse,
    check_names,
)
# External databases for pending timers (docs/timer-stores.md).
TIMER_STORES = env.parse_items("TIMER_STORES", [], StoreSpec.parse, check_store_names, separator=SEPARATOR)

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_RENDERER_CLASSES": ["eventservice.api.renderers.ModelRenderer"],
    "DEFAULT_PARSER_CLASSES": ["eventservice.api.parsers.StrictJSONParser"],
    "EXCEPTION_HANDLER": "eventservice.api.problems.handle_exception",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Event Service",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "PREPROCESSING_HOOKS": ["eventservice.api.openapi.select_api_endpoints"],
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "eventservice.api.openapi.complete_document",
    ],
    "SORT_OPERATIONS": False,
    "COMPONENT_SPLIT_PATCH": False,
    "PATH_CONVERTER_OVERRIDES": {"id": {"type": "string", "format": "uuid"}},
    "CAMELIZE_NAMES": True,
    "ENUM_NAME_OVERRIDES": {
        "Status": "orchestration.states.Status",
        "Delivery": "orchestration.states.Delivery",
    },
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

# Limits of the API: the body of a call, a request with one call, a batch, and the timeout of an attempt.
API_MAX_BODY_BYTES = env.integer("API_MAX_BODY_BYTES", 1_048_576, minimum=1024, maximum=64 * 1_048_576)
API_MAX_REQUEST_BYTES = env.integer(
    "API_MAX_REQUEST_BYTES", 2 * 1_048_576, minimum=1024, maximum=128 * 1_048_576
)
API_MAX_BATCH_BYTES = env.integer(
    "API_MAX_BATCH_BYTES", 16 * 1_048_576, minimum=1024, maximum=256 * 1_048_576
)
API_MAX_BATCH = env.integer("API_MAX_BATCH", 1000, minimum=1, maximum=10_000)
API_MAX_TIMEOUT_SECONDS = env.integer("API_MAX_TIMEOUT_SECONDS", 3600, minimum=1, maximum=86_400)
# A request that waits for a call to end (?wait=) occupies a web worker.
API_MAX_WAIT_SECONDS = env.integer("API_MAX_WAIT_SECONDS", 30, minimum=0, maximum=300)
# How many such requests may wait at a time on one machine. Others get their response immediately. If there are too few web
# workers, fewer may wait (eventservice.api.long_requests).
API_MAX_WAITERS = env.integer("API_MAX_WAITERS", 1, minimum=0, maximum=1000)
# How many exports, statistics and the like may run at a time on one machine.
MAX_EXPENSIVE_READS = env.integer("MAX_EXPENSIVE_READS", 1, minimum=1, maximum=1000)
# If true, anybody who can reach /metrics may read it. Otherwise it requires an operator's API key.
METRICS_OPEN = env.boolean("METRICS_OPEN", not PRODUCTION)
# Django's own limit answers with an HTML page, so it must not be the lower one.
DATA_UPLOAD_MAX_MEMORY_SIZE = max(API_MAX_REQUEST_BYTES, API_MAX_BATCH_BYTES)

# If "paused", dispatch is paused when an engine or dispatcher starts, until an operator resumes it.
DISPATCH = env.choice("DISPATCH", "running", ("running", "paused"))
# The number of calls that one transaction starts, and that one engine has in flight: in all, and to one host.
ENGINE_BATCH = env.integer("ENGINE_BATCH", 500, minimum=1, maximum=5000)
ENGINE_IN_FLIGHT = env.integer("ENGINE_IN_FLIGHT", 20_000, minimum=1, maximum=100_000)
ENGINE_PER_HOST = env.integer("ENGINE_PER_HOST", 5_000, minimum=1, maximum=100_000)
# The longest time between two looks of an engine for due timers. It also looks when the next timer that it knows of is due,
# and on SQLite, where a commit wakes it, when another process has written.
ENGINE_POLL_SECONDS = env.seconds(
    "ENGINE_POLL_SECONDS", get_default_poll_seconds(DATABASES["default"]), minimum=0.02, maximum=60.0
)

# A node without a heartbeat for this time is declared dead, and its calls are taken over. A shorter lease recovers
# sooner, but declares processes dead that were only paused.
NODE_LEASE_SECONDS = env.seconds("NODE_LEASE_SECONDS", 8.0, minimum=1.0, maximum=30.0)

# The addresses that a call may reach (docs/guarantees.md). In development these include the developer's own machine.
EGRESS_ALLOW_PRIVATE = env.boolean("EGRESS_ALLOW_PRIVATE", False)
EGRESS_ALLOW = [
    *(() if PRODUCTION else LOOPBACK),
    *env.strings("EGRESS_ALLOW", check=lambda entry: check_entry(entry, production=PRODUCTION)),
]

env.check()
