"""The system's own Chromium, as Playwright is to start it."""

from __future__ import annotations

import os
import shutil

from playwright.sync_api import ViewportSize

EXECUTABLE = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE = ViewportSize(width=1400, height=900)
PHONE = ViewportSize(width=390, height=844)
