#!/usr/bin/env bash
# Makes requirements.lock again from pyproject.toml: one file for every platform and Python from 3.11 on.
# Pins stay as they are unless a range forbids them; `tools/lock.sh --upgrade` takes the newest versions.
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

# No index address, no path and no machine's name may reach the file: it must install through any mirror.
"$uv" pip compile pyproject.toml \
    --universal --python-version 3.11 --all-extras --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate \
    --custom-compile-command tools/lock.sh --quiet --output-file requirements.lock "$@"
