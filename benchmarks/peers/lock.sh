#!/usr/bin/env bash
# Writes the lock files of the peers: node/package-lock.json from node/package.json, and python/*.lock from python/*.in.
# Needs npm. They install from any registry or index, so they contain no addresses.
set -euo pipefail
cd "$(dirname "$0")"

# npm's own option to leave out addresses forgets optional packages of other platforms, so they are removed afterwards.
npm --prefix node install --package-lock-only --no-audit --no-fund "$@"
node -e '
    const fs = require("fs"), lock = JSON.parse(fs.readFileSync("node/package-lock.json"));
    for (const entry of Object.values(lock.packages)) {
        delete entry.resolved;
        delete entry.funding;
    }
    fs.writeFileSync("node/package-lock.json", JSON.stringify(lock, null, 2) + "\n");
'

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" -m venv "$scratch"
"$scratch/bin/python" -m pip install --quiet uv
for name in celery huey; do
    "$scratch/bin/uv" pip compile "python/$name.in" \
        --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-emit-find-links --no-annotate \
        --custom-compile-command benchmarks/peers/lock.sh --quiet --output-file "python/$name.lock"
done
