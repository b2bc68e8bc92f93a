"""Pictures of the console's pages, light and dark, for the README: `make screenshots`.

Starts a system of its own with a made-up week in it; or, with --url, takes one that is running as it is.
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
from tests.browser.system import PASSWORD, running

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "screenshots"
CALLS = 7000
# By then some of what is still to come has been called, and something is running.
SETTLED_SECONDS = 40
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="of a running system, instead of one of its own")
    parser.add_argument("--user", default="ada", help="who signs in there")
    parser.add_argument("--password", default=PASSWORD)
    parser.add_argument("--target", default="http://127.0.0.1:9000", help="its mock target")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.url:
        take(options.url, options.target, options.user, options.password, options.folder)
        return
    with tempfile.TemporaryDirectory() as scratch, running(Path(scratch), CALLS) as system:
        time.sleep(SETTLED_SECONDS)
        take(system.url, system.target, "ada", PASSWORD, options.folder)


def take(url: str, target: str, user: str, password: str, folder: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE or None, args=FLAGS)
        scratch = browser.new_page()
        desk = browser.new_context(base_url=url, viewport=WIDE)
        page = desk.new_page()
        page.goto("/login/")
        shoot(page, scratch, folder / "login")
        sign_in(page, user, password)
        for name, show in PAGES.items():
            show(page, target)
            shoot(page, scratch, folder / name)
        pocket = browser.new_context(
            base_url=url,
            viewport=PHONE,
            device_scale_factor=2,
            is_mobile=True,
            has_touch=True,
            storage_state=desk.storage_state(),
        )
        phone = pocket.new_page()
        for name in ON_A_PHONE:
            PAGES[name](phone, target)
            shoot(phone, scratch, folder / f"{name}-phone")
        browser.close()


def sign_in(page: Page, user: str, password: str) -> None:
    page.goto("/login/")
    page.get_by_label("Name").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(re.compile(r"/$"))


# --- pages ----------------------------------------------------------------------------------------------------

Show = Callable[[Page, str], object]


def opened(address: str) -> Show:
    return lambda page, target: page.goto(address)


def first_of(address: str, link: str, then: str = "") -> Show:
    """What the first such link of a page leads to."""

    def show(page: Page, target: str) -> None:
        page.goto(address)
        page.goto((page.locator(link).first.get_attribute("href") or "") + then)

    return show


def answered(page: Page, target: str) -> None:
    """A request that has been filled in and made."""
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


PAGES: dict[str, Show] = {
    "dashboard": opened("/?range=7d"),
    "status": opened("/calls/?limit=25"),
    "request": answered,
    "details": first_of("/calls/?name=Sync+stock&status=Failed", "td.go a", "?tab=attempts"),
    "timers": opened("/timers/"),
    "outbox": opened("/outbox/"),
    "tenants": opened("/tenants/"),
    "tenant": first_of("/tenants/", "td.name a"),
    "actions": opened("/actions/"),
    "admin": opened("/admin/orchestration/servicecall/"),
}
ON_A_PHONE = ("dashboard", "status")


# --- pictures -------------------------------------------------------------------------------------------------


def shoot(page: Page, scratch: Page, path: Path) -> None:
    """Both schemes; Playwright's own files are three times as large as these need to be."""
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        picture = page.screenshot(animations="disabled", caret="hide")
        small = Path(f"{path}-{scheme}.png")
        small.write_bytes(min(reduced(scratch, picture), picture, key=len))
        print(f"{small.name}: {small.stat().st_size // 1000} kB")


# The most frequent of colours that are alike, 256 in all, and for every other the nearest of them.
QUANTIZE = """
async (address) => {
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const brush = canvas.getContext("2d");
  brush.drawImage(image, 0, 0);
  const pixels = new Uint32Array(brush.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const alike = new Map();
  for (const [pixel, count] of counts) {
    const box = (pixel & 0xf8f8f8) >>> 3;
    const found = alike.get(box) || { count: 0, most: 0, pixel };
    if (count > found.most) [found.most, found.pixel] = [count, pixel];
    found.count += count;
    alike.set(box, found);
  }
  const boxes = [...alike.values()].sort((a, b) => b.count - a.count).slice(0, 256);
  const palette = boxes.map((box) => box.pixel);
  const parts = (pixel) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
  const known = palette.map(parts);
  const places = new Map(palette.map((pixel, place) => [pixel, place]));
  const nearest = (pixel) => {
    const [r, g, b] = parts(pixel);
    let best = 0, least = Infinity;
    known.forEach(([R, G, B], place) => {
      const far = (r - R) ** 2 + (g - G) ** 2 + (b - B) ** 2;
      if (far < least) [best, least] = [place, far];
    });
    return best;
  };
  const bytes = new Uint8Array(pixels.length);
  pixels.forEach((pixel, at) => {
    if (!places.has(pixel)) places.set(pixel, nearest(pixel));
    bytes[at] = places.get(pixel);
  });
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return { width: image.width, height: image.height, palette: known, places: btoa(text) };
}
"""


def reduced(scratch: Page, picture: bytes) -> bytes:
    """The same PNG with a palette."""
    # `scratch`, because the console's own pages would refuse the picture's address.
    made = scratch.evaluate(QUANTIZE, f"data:image/png;base64,{base64.b64encode(picture).decode()}")
    width, height, places = made["width"], made["height"], base64.b64decode(made["places"])
    rows = b"".join(b"\0" + places[y * width : (y + 1) * width] for y in range(height))
    palette = bytes(part for colour in made["palette"] for part in colour)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            chunk(b"PLTE", palette),
            chunk(b"IDAT", zlib.compress(rows, 9)),
            chunk(b"IEND", b""),
        ]
    )


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    main()
