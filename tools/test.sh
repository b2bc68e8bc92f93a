#!/usr/bin/env bash
# The whole suite on SQLite, then on PostgreSQL and MariaDB where they answer. All three run, and any failure
# counts. REQUIRE_SERVICES=1 makes a missing server a failure. RERUN=3: up to three failed tests are run once more,
# alone; those that pass then are told as flaky, to be mended. Arguments are passed on to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
DEFAULT_MARKS="not slow and not chaos"       # as in pyproject.toml: a second -m replaces the first
SERVER_MARKS="$DEFAULT_MARKS and not sqlite_only and not browser"
# One more than cores: many tests wait for what other processes do.
WORKERS=$(($(nproc) + 1))
# A test that hangs fails, with the traceback of where, and holds up nobody.
ENDLESS=(-o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true)
closing_lines=()
failed=0

# host and port of a database URL, on one line
address() {
    "$PYTHON" -c 'import sys, urllib.parse as p; u = p.urlsplit(sys.argv[1]); print(u.hostname, u.port or sys.argv[2])' "$@"
}

answers() { timeout 3 bash -c "exec 3<>/dev/tcp/$1/$2" 2>/dev/null; }

run() { # name, DATABASE_URL (empty: the settings' own SQLite), marks, pytest's arguments
    local name=$1 url=$2 marks=$3 log
    shift 3
    log=$(mktemp)
    local pytest=(env -u DATABASE_URL ${url:+"DATABASE_URL=$url"} "$PYTHON" -m pytest -m "$marks" "${ENDLESS[@]}" "$@")
    printf '\n== %s ==\n' "$name"
    "${pytest[@]}" -n "$WORKERS" --dist loadgroup 2>&1 | tee "$log"
    case ${PIPESTATUS[0]} in
        0) closing_lines+=("$name: $(tail -n 1 "$log")") ;;
        1) closing_lines+=("$name: $(tail -n 1 "$log")" "$(grep -E '^(FAILED|ERROR) ' "$log")")
           rerun "$name" "$(grep -cE '^(FAILED|ERROR) ' "$log")" "${pytest[@]}" || failed=1 ;;
        *) closing_lines+=("$name: $(tail -n 1 "$log")")
           failed=1 ;;
    esac
    rm -f "$log"
}

rerun() { # name, how many have failed, the command
    local name=$1 count=$2
    shift 2
    [ "$count" -le "${RERUN:-0}" ] || return 1
    printf '\n== %s: what has failed, alone ==\n' "$name"
    "$@" --last-failed --last-failed-no-failures none || return 1
    closing_lines+=("$name: FLAKY: what has failed above passes alone")
}

run_on_server() { # name, URL, default port, pytest's arguments
    local name=$1 url=$2 port=$3 host
    shift 3
    read -r host port < <(address "$url" "$port")
    if answers "$host" "$port"; then
        run "$name" "$url" "$SERVER_MARKS" "$@"
    else
        closing_lines+=("$name: not run, nothing answers at $host:$port")
        [ "${REQUIRE_SERVICES:-0}" != 1 ] || failed=1
    fi
}

run SQLite "" "$DEFAULT_MARKS" "$@"
run_on_server PostgreSQL "${TEST_POSTGRES_URL:-postgres://root@127.0.0.1:5432/test}" 5432 "$@"
run_on_server MariaDB "${TEST_MARIADB_URL:-mysql://root@127.0.0.1:3306/test}" 3306 "$@"

printf '\n'
printf '%s\n' "${closing_lines[@]}"
exit "$failed"
