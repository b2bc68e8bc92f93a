"""The cast, two tenants of which neither may see the other, and the stage, a database in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any
from unittest import mock

import pytest
from django.conf import settings
from django.core.management.color import no_style
from django.db import connection
from django.test import TransactionTestCase
from hypothesis import settings as hypothesis_settings

from eventservice.db.configuration import BY_ENGINE
from eventservice.db.dialects.sqlite.configuration import ENGINE as SQLITE
from eventservice.db.now import pin_time
from eventservice.kernel.env import ENV_FILE, get_env_path
from eventservice.kernel.ttl_cache import clear_caches
from eventservice.tenants.models import Tenant
from eventservice.tenants.refusals import forget_refusals
from tests.contracts.timer_stores.memory_fleet import MemoryFleet, using_memory_fleet
from tests.factories import NOON, TenantFactory
from tests.orchestration.support import ManualEngine
from tests.temporary_folders import create_folder, create_worker_folder, remove_folder

# The settings of a service that runs from this clone are not those of the tests, nor of the processes that they start.
if not os.environ.get(ENV_FILE) and get_env_path(settings.BASE_DIR).exists():
    pytest.exit(
        f"The tests must not use the settings in .env. Run them with {ENV_FILE}={os.devnull}, as make does."
    )
os.environ.setdefault(ENV_FILE, os.devnull)

# No deadline: the time of an example says more about the machine than about the code. Where a change is judged, the
# examples are the same each time; elsewhere new ones are searched for.
hypothesis_settings.register_profile(
    "no deadline", deadline=None, derandomize=os.environ.get("REQUIRE_SERVICES") == "1"
)
hypothesis_settings.load_profile("no deadline")

# They describe the models, and no test changes them.
TABLES_OF_DJANGO = {"auth_permission", "django_content_type"}


def pytest_configure(config: pytest.Config) -> None:
    if not _is_worker(config):
        create_folder()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _is_worker(config):
        remove_folder()


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests that use no database on PostgreSQL and MariaDB: they have run on SQLite. Those of `db` write SQL."""
    if settings.DATABASES["default"]["ENGINE"] != SQLITE:
        once = [item for item in items if not _may_differ(item)]
        config.hook.pytest_deselected(items=once)
        items[:] = [item for item in items if _may_differ(item)]


def _may_differ(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return (
        bool(item.get_closest_marker("django_db"))
        or "db" in fixtures
        or "transactional_db" in fixtures
        or "db" in item.path.parts
    )


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None) -> None:
    """Use a file, as in production: an in-memory database has neither WAL nor other connections."""
    database = settings.DATABASES["default"]
    if database["ENGINE"] == SQLITE:
        database["TEST"]["NAME"] = str(create_worker_folder() / "test.db")
    else:
        # Tests prepare many rows at once, and share the machine with others. The processes that they start have the
        # usual limits.
        waits = replace(settings.DATABASE_WAITS, statement_seconds=60)
        BY_ENGINE[database["ENGINE"]].configure(database, waits)


@pytest.fixture(scope="session", autouse=True)
def quick_teardown() -> Iterator[None]:
    """Empty the tables that have rows after a transactional test. Django would empty all, and write what it writes after a
    migration, which takes longer than most tests."""
    with mock.patch.object(TransactionTestCase, "_fixture_teardown", empty_tables):
        yield


def empty_tables(_test: TransactionTestCase) -> None:
    tables = [
        table
        for table in connection.introspection.django_table_names(only_existing=True, include_views=False)
        if table not in TABLES_OF_DJANGO
    ]
    with connection.cursor() as cursor:
        has_rows = (f"EXISTS (SELECT 1 FROM {connection.ops.quote_name(table)})" for table in tables)
        cursor.execute(f"SELECT {', '.join(has_rows)}")
        filled = [table for table, is_filled in zip(tables, cursor.fetchone(), strict=True) if is_filled]
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), filled, allow_cascade=True))


@pytest.fixture(autouse=True)
def empty_caches() -> None:
    """Clear the caches of this process, which outlive the rows of a test."""
    clear_caches()
    forget_refusals()


@pytest.fixture
def served(live_server: Any) -> Iterator[str]:
    """Return the URL of a running server. Its threads keep no connection, which would block the teardown."""
    connection.settings_dict["CONN_MAX_AGE"], kept = 0, connection.settings_dict["CONN_MAX_AGE"]
    yield live_server.url
    connection.settings_dict["CONN_MAX_AGE"] = kept


@pytest.fixture(scope="session", autouse=True)
def static_folder() -> None:
    """Create the folder, because Whitenoise warns if it is missing, and warnings are errors here."""
    settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)


@pytest.fixture(scope="session", autouse=True)
def own_profile(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the tests, and the processes that they start, away from the profile of whoever runs them."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture
def tenant(db: None) -> Tenant:
    return TenantFactory(name="acme")


@pytest.fixture
def intruder(db: None) -> Tenant:
    """Return the tenant that must see nothing of the other's."""
    return TenantFactory(name="intruder")


@pytest.fixture
def fleet() -> Iterator[MemoryFleet]:
    """Return a timer store in memory. `TIMER_STORES` also has the store `away`, which cannot be reached."""
    with using_memory_fleet() as fleet:
        yield fleet


@pytest.fixture
def at_noon() -> Iterator[datetime]:
    """Make database time stand still."""
    with pin_time(NOON):
        yield NOON


@pytest.fixture
def manual_engine(db: None, at_noon: datetime) -> ManualEngine:
    """Return an engine at a time that stands still at noon."""
    return ManualEngine()


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[Any]]]:
    """Return a function that calls another in a thread of its own, and so on a database connection of its own."""

    def call_on_own_connection(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=16) as pool:
        yield lambda function, *args: pool.submit(call_on_own_connection, function, *args)
