#!/usr/bin/env bash
# Runs the whole suite on SQLite, then on PostgreSQL, MariaDB and MySQL if they are running. A failure on one database does
# not keep the others from running. Arguments are passed on to pytest. Environment variables:
#
#   TEST_POSTGRES_URL, TEST_POSTGRES18_URL, TEST_MARIADB_URL, TEST_MYSQL_URL
#                                         the servers to use, instead of those that `make services` starts
#   REQUIRE_SERVICES=1                    fail when a server is missing
#   MAX_SECONDS=1500                      interrupt the tests on a database after so long, and skip those on the next
#   RERUN=3                               run up to three failed tests once more, alone, and report those that pass as
#                                         flaky
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
DEFAULT_MARKS="not slow and not chaos"       # as in pyproject.toml: a second -m replaces the first
SERVER_MARKS="$DEFAULT_MARKS and not sqlite_only and not browser"
# One more than there are cores: many tests wait for other processes.
WORKERS=$(($(nproc) + 1))
# A test that hangs fails with a traceback. If so many tests fail, something that they all use is broken.
LIMITS=(-o faulthandler_timeout=180 -o faulthandler_exit_on_timeout=true --maxfail=40)
# The tests on one database are interrupted after so long, and those on the next ones are not begun: what has failed by then is
# reported.
MAX_SECONDS=${MAX_SECONDS:-1500}
closing_lines=()
failed=0
interrupted=0

# address URL DEFAULT_PORT: prints the host and port of a database URL on one line.
address() {
    "$PYTHON" -c 'import sys, urllib.parse as p; u = p.urlsplit(sys.argv[1]); print(u.hostname, u.port or sys.argv[2])' "$@"
}

answers() { timeout 3 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null; }

# run NAME URL MARKS ARGUMENT …: runs pytest on one database. An empty URL stands for the settings' SQLite.
run() {
    local name=$1 url=$2 marks=$3 log
    shift 3
    if [ "$interrupted" = 1 ]; then
        closing_lines+=("$name: NOT TESTED")
        return
    fi
    log=$(mktemp)
    local pytest=(env -u DATABASE_URL ENV_FILE=/dev/null ${url:+"DATABASE_URL=$url"} "$PYTHON" -m pytest -m "$marks" "${LIMITS[@]}" "$@")
    printf '\n== %s ==\n' "$name"
    timeout --signal=INT --kill-after=60 "$MAX_SECONDS" "${pytest[@]}" -n "$WORKERS" --dist loadgroup 2>&1 | tee "$log"
    case ${PIPESTATUS[0]} in
        0) closing_lines+=("$name: $(tail -n 1 "$log")") ;;
        1) closing_lines+=("$name: $(tail -n 1 "$log")" "$(grep -E '^(FAILED|ERROR) ' "$log")")
           rerun "$name" "$(grep -cE '^(FAILED|ERROR) ' "$log")" "${pytest[@]}" || failed=1 ;;
        124 | 137)
           closing_lines+=("$name: INTERRUPTED after $MAX_SECONDS s" "$(grep -E '^(FAILED|ERROR) ' "$log")")
           interrupted=1 failed=1 ;;
        *) closing_lines+=("$name: $(tail -n 1 "$log")")
           failed=1 ;;
    esac
    rm -f "$log"
}

# rerun NAME FAILED_COUNT COMMAND …: runs the failed tests once more, unless there are too many.
rerun() {
    local name=$1 count=$2
    shift 2
    [ "$count" -le "${RERUN:-0}" ] || return 1
    printf '\n== %s: failed tests, run alone ==\n' "$name"
    forget_groups
    "$@" --last-failed --last-failed-no-failures none || return 1
    closing_lines+=("$name: FLAKY: the tests that failed above pass alone")
}

# forget_groups: removes the groups that pytest-xdist adds to the names of failed tests (@browser). With them, pytest
# would not find the tests, and run all instead.
forget_groups() {
    "$PYTHON" - .pytest_cache/v/cache/lastfailed <<'END'
import json, pathlib, re, sys

path = pathlib.Path(sys.argv[1])
if path.exists():
    path.write_text(json.dumps({re.sub(r"@[^@\]]*$", "", name): True for name in json.loads(path.read_text())}))
END
}

# run_on_server NAME SERVICE URL DEFAULT_PORT ARGUMENT …: runs pytest on a server if one is running. An empty URL stands
# for the one that `make services` starts.
run_on_server() {
    local name=$1 service=$2 url=$3 port=$4 host
    shift 4
    url=${url:-$(tools/services/services url "$service")}
    read -r host port < <(address "$url" "$port")
    if answers "$host" "$port"; then
        run "$name" "$url" "$SERVER_MARKS" "$@"
    else
        closing_lines+=("$name: NOT TESTED, because no server answers at $host:$port. Start one: make services NAMES=$service")
        [ "${REQUIRE_SERVICES:-0}" != 1 ] || failed=1
    fi
}

run SQLite "" "$DEFAULT_MARKS" "$@"
run_on_server "PostgreSQL 15" postgres "${TEST_POSTGRES_URL:-}" 5432 "$@"
# It gets the same SQL as PostgreSQL 15, so what pages and commands make of it is not tested again.
run_on_server "PostgreSQL 18" postgres18 "${TEST_POSTGRES18_URL:-}" 5432 --ignore tests/console --ignore tests/management "$@"
run_on_server MariaDB mariadb "${TEST_MARIADB_URL:-}" 3306 "$@"
# Its SQL is nearly that of MariaDB: the pages are tested there.
run_on_server MySQL mysql "${TEST_MYSQL_URL:-}" 3306 --ignore tests/console "$@"

printf '\n'
printf '%s\n' "${closing_lines[@]}"
exit "$failed"
