#!/usr/bin/env bash
# Writes two files from pyproject.toml, each for every platform and for Python 3.11 or newer: requirements.lock is what
# production needs, and requirements-dev.lock is that and the tools for development, in the same versions. A version stays
# as it is unless pyproject.toml excludes it; `tools/lock.sh --upgrade` takes the newest versions.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    "${PYTHON:-python3}" -m venv "$scratch"
    "$scratch/bin/python" -m pip install --quiet uv
    uv=$scratch/bin/uv
fi

# lock FILE ARGUMENT …: writes one file. It must install from any package index, so it contains no addresses, paths or host
# names.
lock() {
    local file=$1
    shift
    "$uv" pip compile pyproject.toml \
        --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-annotate \
        --custom-compile-command tools/lock.sh --quiet --output-file "$file" "$@"
}

lock requirements.lock --extra mariadb --extra redis --extra rabbitmq --extra nats --extra kafka --extra sql-store --extra mongodb-store --extra dynamodb-store --extra cassandra-store "$@"
lock requirements-dev.lock --all-extras --constraints requirements.lock "$@"
