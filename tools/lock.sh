#!/usr/bin/env bash
# Writes requirements.lock from pyproject.toml: one file for every platform and for Python 3.11 or newer. A version stays
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

# The file must install from any package index, so it contains no addresses, paths or host names.
"$uv" pip compile pyproject.toml \
    --universal --python-version 3.11 --all-extras --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate \
    --custom-compile-command tools/lock.sh --quiet --output-file requirements.lock "$@"
