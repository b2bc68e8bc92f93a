"""Take screenshots of the console's pages, light and dark, for the README: `make screenshots`.

The pages are those of a new system with a week of sample calls; or, with --url, those of a system that is running.
"""

from __future__ import annotations

import argparse
import base64
import re
import struct
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, sync_playwright

from tests.browser.chromium import EXECUTABLE, FLAGS, PHONE, WIDE
from tests.browser.system import PASSWORD, run_system

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "screenshots"
CALLS = 7000
# By then some of the scheduled calls have been sent, and some are running.
SETTLE_SECONDS = 40
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="take the pages of this running system instead of a new one")
    parser.add_argument("--user", default="ada", help="the user of that system to sign in with")
    parser.add_argument("--password", default=PASSWORD, help="the password of that user")
    parser.add_argument("--target", default="http://127.0.0.1:9000", help="the mock target of that system")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the folder for the pictures")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.url:
        take_all(options.url, options.target, options.user, options.password, options.folder)
        return
    with tempfile.TemporaryDirectory() as scratch, run_system(Path(scratch), CALLS) as system:
        time.sleep(SETTLE_SECONDS)
        take_all(system.url, system.target, "ada", PASSWORD, options.folder)


def take_all(url: str, target: str, user: str, password: str, folder: Path) -> None:
    """Take the pictures of every page, and of some pages on a phone."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE or None, args=FLAGS)
        scratch = browser.new_page()
        desktop = browser.new_context(base_url=url, viewport=WIDE)
        page = desktop.new_page()
        page.goto("/login/")
        take_pictures(page, scratch, folder / "login")
        sign_in(page, user, password)
        for name, show in PAGES.items():
            show(page, target)
            take_pictures(page, scratch, folder / name)
        mobile = browser.new_context(
            base_url=url,
            viewport=PHONE,
            device_scale_factor=2,
            is_mobile=True,
            has_touch=True,
            storage_state=desktop.storage_state(),
        )
        phone = mobile.new_page()
        for name in PHONE_PAGES:
            PAGES[name](phone, target)
            take_pictures(phone, scratch, folder / f"{name}-phone")
        browser.close()


def sign_in(page: Page, user: str, password: str) -> None:
    page.goto("/login/")
    page.get_by_label("Name").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"/$"))


# --- pages ----------------------------------------------------------------------------------------------------

Show = Callable[[Page, str], object]


def open_page(address: str) -> Show:
    """Return a function that opens this address."""
    return lambda page, target: page.goto(address)


def open_first_link(address: str, link: str, suffix: str = "") -> Show:
    """Return a function that opens a page and follows the first link that matches the selector `link`."""

    def show(page: Page, target: str) -> None:
        page.goto(address)
        page.goto((page.locator(link).first.get_attribute("href") or "") + suffix)

    return show


def submit_request(page: Page, target: str) -> None:
    """Fill in the request form, submit it and wait for the response."""
    page.goto("/calls/new/")
    page.get_by_label("Tenant").select_option("harbor-books")
    page.get_by_label("Name", exact=True).fill("Capture payment")
    page.get_by_label("URL", exact=True).fill(f"{target}/echo")
    page.get_by_label("Name of header 1").fill("X-Order")
    page.get_by_label("Value of header 1").fill("HB-204711")
    body = '{\n  "paymentId": "pay_51870442",\n  "amount": {"value": "38.90", "currency": "EUR"},\n  "final": true\n}'
    page.get_by_label("Body", exact=True).fill(body)
    page.get_by_label("Tags").fill("payments")
    page.get_by_role("button", name="Submit").click()
    page.locator("#response .pill", has_text="Succeeded").wait_for()
    page.get_by_role("heading", name="Request").scroll_into_view_if_needed()
    page.mouse.wheel(0, 420)
    page.wait_for_timeout(300)


def try_endpoint(page: Page, target: str) -> None:
    """Create a webhook endpoint unless there is one, send it test events, and open its page."""
    page.goto("/webhooks/")
    if not page.locator("table.list").count():
        page.goto("/webhooks/new/")
        page.get_by_label("Tenant").select_option("harbor-books")
        page.get_by_label("URL").fill(f"{target}/ok")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("link", name="Open endpoint").click()
        for _ in range(3):
            page.get_by_role("button", name="Send test event").click()
            page.locator("#delivery .pill", has_text="delivered").first.wait_for()
            page.locator("#delivery .head a").last.click()
        page.goto("/webhooks/")
    page.locator("table.list td.name a").first.click()
    page.locator("table.list .pill", has_text="delivered").first.wait_for()


PAGES: dict[str, Show] = {
    "dashboard": open_page("/?range=7d"),
    "calls": open_page("/calls/?limit=25"),
    "new-call": submit_request,
    "call": open_first_link("/calls/?name=Sync+stock&status=Failed", "td.go a", "?tab=attempts"),
    "timers": open_page("/timers/?show=all"),
    "events": open_page("/events/"),
    "webhooks": try_endpoint,
    "tenants": open_page("/tenants/"),
    "tenant": open_first_link("/tenants/", "td.name a"),
    "cluster": open_page("/cluster/"),
    "audit-log": open_page("/audit-log/"),
    "admin": open_page("/admin/orchestration/servicecall/"),
}
PHONE_PAGES = ("dashboard", "calls")


# --- pictures -------------------------------------------------------------------------------------------------


def take_pictures(page: Page, scratch: Page, path: Path) -> None:
    """Take the page in both color schemes. A palette makes the files a third as large as Playwright's."""
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        picture = page.screenshot(animations="disabled", caret="hide")
        file = Path(f"{path}-{scheme}.png")
        file.write_bytes(min(apply_palette(scratch, picture), picture, key=len))
        print(f"{file.name}: {file.stat().st_size // 1000} kB")


# Similar colors are grouped; the palette contains the most frequent color of each of the 256 largest groups. Every other
# color is replaced by the nearest in the palette.
QUANTIZE = """
async (address) => {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const groups = new Map();
  for (const [pixel, count] of counts) {
    const key = (pixel & 0xf8f8f8) >>> 3;
    const group = groups.get(key) || { count: 0, max: 0, pixel };
    if (count > group.max) [group.max, group.pixel] = [count, pixel];
    group.count += count;
    groups.set(key, group);
  }
  const largest = [...groups.values()].sort((a, b) => b.count - a.count).slice(0, 256);
  const palette = largest.map((group) => group.pixel);
  const parts = (pixel) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
  const colors = palette.map(parts);
  const indexes = new Map(palette.map((pixel, index) => [pixel, index]));
  const nearest = (pixel) => {
    const [r, g, b] = parts(pixel);
    let best = 0, min = Infinity;
    colors.forEach(([R, G, B], index) => {
      const distance = (r - R) ** 2 + (g - G) ** 2 + (b - B) ** 2;
      if (distance < min) [best, min] = [index, distance];
    });
    return best;
  };
  const bytes = new Uint8Array(pixels.length);
  pixels.forEach((pixel, position) => {
    if (!indexes.has(pixel)) indexes.set(pixel, nearest(pixel));
    bytes[position] = indexes.get(pixel);
  });
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return { width: image.width, height: image.height, palette: colors, indexes: btoa(text) };
}
"""


def apply_palette(scratch: Page, picture: bytes) -> bytes:
    """Return the same PNG with a palette of 256 colors."""
    # The work is done on a blank page, because the console's pages do not load data: URLs.
    result = scratch.evaluate(QUANTIZE, f"data:image/png;base64,{base64.b64encode(picture).decode()}")
    width, height, indexes = result["width"], result["height"], base64.b64decode(result["indexes"])
    rows = b"".join(b"\0" + indexes[y * width : (y + 1) * width] for y in range(height))
    palette = bytes(part for color in result["palette"] for part in color)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            build_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            build_chunk(b"PLTE", palette),
            build_chunk(b"IDAT", zlib.compress(rows, 9)),
            build_chunk(b"IEND", b""),
        ]
    )


def build_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    main()
