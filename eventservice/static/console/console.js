// Shared by all pages: the dialog, live parts, copy buttons, the theme, the menu.
(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => within.querySelectorAll(selector);

  // --- theme: the system's by default ------------------------------------------------------------
  const themes = ["auto", "light", "dark"];
  const theme = () => localStorage.getItem("theme") || "auto";
  const dress = () => {
    if (theme() === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme();
    all("[data-theme-switch]").forEach((button) => {
      button.querySelector("use").setAttribute("href", button.dataset.icons + "#theme-" + theme());
      button.setAttribute("aria-label", "Theme: " + theme());
      button.title = "Theme: " + theme();
    });
  };
  dress();

  // --- the browser's time zone, in which the server shows times unless the user has chosen another ---------------------
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) {
    const secure = location.protocol === "https:" ? "; secure" : "";
    document.cookie = "browser_time_zone=" + encodeURIComponent(zone) + "; path=/; max-age=31536000; samesite=lax" + secure;
  }

  // --- one click handler, which also serves content that is loaded later ------------------------------------------------
  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-theme-switch], [data-menu], [data-copy], [data-close], [data-pause], [data-look-now]");
    if (!target) {
      if (event.target.nodeName === "DIALOG") event.target.close(); // its backdrop
      return;
    }
    if ("themeSwitch" in target.dataset) {
      localStorage.setItem("theme", themes[(themes.indexOf(theme()) + 1) % themes.length]);
      dress();
    } else if ("menu" in target.dataset) {
      const open = target.closest(".side").classList.toggle("open");
      target.setAttribute("aria-expanded", String(open));
    } else if ("copy" in target.dataset) {
      event.preventDefault();
      const source = target.dataset.copyFrom && document.querySelector(target.dataset.copyFrom);
      copy(source ? source.textContent : target.dataset.copy, target);
    } else if ("close" in target.dataset) {
      const dialog = target.closest("dialog");
      if (dialog) {
        event.preventDefault();
        dialog.close();
      }
    } else if ("pause" in target.dataset) {
      pause(!paused);
    } else if ("lookNow" in target.dataset) {
      lookNow();
    }
  });

  const copy = async (text, button) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    const status = document.getElementById("said");
    if (status) status.textContent = "Copied";
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1200);
  };

  // --- the dialog opens when htmx has loaded content into it --------------------------------------------------------------
  document.addEventListener("htmx:afterSwap", (event) => {
    const dialog = event.detail.target.closest("dialog");
    if (dialog && !dialog.open) dialog.showModal();
  });

  // The button stays disabled until the confirmation word is typed.
  document.addEventListener("input", (event) => {
    const word = event.target.dataset && event.target.dataset.word;
    if (!word) return;
    const guarded = event.target.form.querySelector("[data-guarded]"); // without the dialog, the server checks
    if (guarded) guarded.disabled = event.target.value.trim() !== word;
  });

  // A sign-in in any tab replaces the CSRF token: requests carry the newest, not the one of their page.
  const token = () => (document.cookie.match(/(?:^|; )csrftoken=([^;]+)/) || [])[1];
  document.addEventListener("submit", (event) => {
    const field = event.target.elements.csrfmiddlewaretoken;
    if (field && token()) field.value = token();
  });
  document.addEventListener("htmx:configRequest", (event) => {
    const { headers, parameters } = event.detail;
    if (!token()) return;
    headers["X-CSRFToken"] = token();
    if (parameters.csrfmiddlewaretoken) parameters.csrfmiddlewaretoken = token();
  });

  // --- live parts: data-live="seconds" between two requests, none while the tab is hidden ------
  // The page says how old what it shows is, and when it could not be updated. Requests wait longer after each failure.
  const POLL_TIMEOUT_MS = 8000;
  const MAX_WAIT_MS = 30000;
  const timers = new WeakMap();
  let paused = false;
  let failures = 0;
  let updated = Date.now();

  const wait = (part) => {
    clearTimeout(timers.get(part));
    const seconds = Number(part.dataset.live);
    if (seconds > 0) timers.set(part, setTimeout(() => look(part), Math.max(seconds * 1000, Math.min(seconds * 1000 * 2 ** failures, MAX_WAIT_MS))));
  };
  const busy = (part) =>
    paused || document.hidden || part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
  const look = (part) => {
    if (!part.isConnected) return;
    if (busy(part)) wait(part);
    else htmx.trigger(part, "look");
  };
  const lookNow = () => all("[data-live]").forEach(look);
  const age = () => said(Math.round((updated - Date.now()) / 1000)).replace(/^now$/, "just now");
  const put = (element, text) => {
    if (element && element.textContent !== text) element.textContent = text;
  };
  const tellAge = () => {
    if (!document.querySelector("[data-live]")) return;
    all("[data-updated]").forEach((place) => put(place, "updated " + age()));
    if (failures) put(document.querySelector("#connection [data-age]"), "Last updated " + age() + ".");
  };
  const show = () => {
    all(".live").forEach((box) => {
      const button = box.querySelector("[data-pause]");
      box.classList.toggle("paused", paused);
      box.classList.toggle("broken", failures > 0 && !paused);
      put(box.querySelector("[data-state]"), paused ? "Paused" : failures ? "Not updating" : "Live");
      put(button, paused ? "Resume" : "Pause");
      button.setAttribute("aria-pressed", String(paused));
    });
    tellAge();
  };
  const pause = (yes) => {
    paused = yes;
    show();
    if (!paused) lookNow();
  };
  const begin = (within) => {
    if (within.matches && within.matches("[data-live]")) wait(within);
    all("[data-live]", within).forEach(wait);
  };
  document.addEventListener("DOMContentLoaded", () => {
    dress();
    begin(document);
    show();
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    begin(event.detail.target.isConnected ? event.detail.target : document);
    show();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !paused) lookNow();
  });

  // After an error the content stays, and a banner says how old it is.
  const failed = (text, part) => {
    failures += 1;
    const banner = document.getElementById("connection");
    if (banner) {
      banner.hidden = false;
      put(banner.querySelector("[data-text]"), text);
    }
    show();
    if (part && part.isConnected) wait(part);
  };
  const recovered = () => {
    failures = 0;
    const banner = document.getElementById("connection");
    if (banner) banner.hidden = true;
  };
  // A part that has been replaced is no longer the element of the event.
  const isPoll = (request) => "live" in request.elt.dataset;
  document.addEventListener("htmx:configRequest", (event) => {
    if (isPoll(event.detail)) event.detail.timeout = POLL_TIMEOUT_MS;
  });
  document.addEventListener("htmx:sendError", (event) => failed("The server cannot be reached.", event.detail.elt));
  document.addEventListener("htmx:timeout", (event) => failed("The server does not respond.", event.detail.elt));
  document.addEventListener("htmx:responseError", (event) =>
    failed("The server returned an error (" + event.detail.xhr.status + ").", event.detail.elt));
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!event.detail.successful) return;
    if (isPoll(event.detail.requestConfig)) updated = Date.now();
    if (failures) recovered();
    show();
  });

  // --- relative times are kept current -----------------------------------------------------------------------
  const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const said = (seconds) => {
    const past = seconds < 0;
    let left = Math.abs(seconds);
    if (left < 1) return "now";
    const parts = [];
    for (const [size, name] of units) {
      const count = Math.floor(left / size);
      if (count && parts.length < 2) parts.push(count + " " + name);
      else if (parts.length) break;
      left -= count * size;
      if (name === "m" && parts.length) break;
    }
    return past ? parts.join(" ") + " ago" : "in " + parts.join(" ");
  };
  const tell = () => {
    if (document.hidden) return;
    const now = Date.now();
    all("time[data-relative]").forEach((time) => {
      time.textContent = said(Math.round((Date.parse(time.dateTime) - now) / 1000));
    });
  };
  setInterval(() => {
    tell();
    tellAge();
  }, 1000);

  // --- selects that submit their form when changed -----------------------------------------------------------------
  document.addEventListener("change", (event) => {
    if ("atOnce" in event.target.dataset) event.target.form.requestSubmit();
  });
  document.addEventListener("DOMContentLoaded", () => {
    all("[data-at-once]").forEach((field) => { field.form.querySelector("button").hidden = true; });
  });
})();
