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
    const target = event.target.closest("[data-theme-switch], [data-menu], [data-copy], [data-close], [data-pause]");
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
  let paused = false;
  let broken = false;
  const timers = new WeakMap();

  const wait = (part) => {
    clearTimeout(timers.get(part));
    const seconds = Number(part.dataset.live);
    if (seconds > 0) timers.set(part, setTimeout(() => look(part), seconds * 1000));
  };
  const busy = (part) =>
    paused || document.hidden || part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");
  const look = (part) => {
    if (!part.isConnected) return;
    if (busy(part)) wait(part);
    else htmx.trigger(part, "look");
  };
  const show = () =>
    all("[data-pause]").forEach((button) => {
      const box = button.closest(".live");
      box.classList.toggle("paused", paused);
      box.classList.toggle("broken", broken && !paused);
      box.querySelector("[data-state]").textContent = paused ? "Paused" : broken ? "Reconnecting…" : "Live";
      button.textContent = paused ? "Resume" : "Pause";
      button.setAttribute("aria-pressed", String(paused));
    });
  const pause = (yes) => {
    paused = yes;
    show();
    if (!paused) all("[data-live]").forEach(look);
  };
  const begin = (within) => {
    if (within.matches && within.matches("[data-live]")) wait(within);
    all("[data-live]", within).forEach(wait);
  };
  document.addEventListener("DOMContentLoaded", () => {
    dress();
    begin(document);
  });
  document.addEventListener("htmx:afterSettle", (event) => begin(event.detail.target.isConnected ? event.detail.target : document));
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !paused) all("[data-live]").forEach(look);
  });

  // After an error the content stays, and a banner says that it may be outdated.
  const failed = (yes, text) => {
    broken = yes;
    const banner = document.getElementById("connection");
    if (banner) {
      banner.hidden = !yes;
      if (yes) banner.querySelector("[data-text]").textContent = text;
    }
    show();
  };
  document.addEventListener("htmx:sendError", (event) => {
    failed(true, "The server is not responding. This page may be outdated.");
    wait(event.detail.elt);
  });
  document.addEventListener("htmx:timeout", (event) => wait(event.detail.elt));
  document.addEventListener("htmx:responseError", (event) => {
    const status = event.detail.xhr.status;
    failed(true, "The server returned an error (" + status + "). This page may be outdated.");
    wait(event.detail.elt);
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful && broken) failed(false);
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
  setInterval(tell, 1000);

  // --- selects that submit their form when changed -----------------------------------------------------------------
  document.addEventListener("change", (event) => {
    if ("atOnce" in event.target.dataset) event.target.form.requestSubmit();
  });
  document.addEventListener("DOMContentLoaded", () => {
    all("[data-at-once]").forEach((field) => { field.form.querySelector("button").hidden = true; });
  });
})();
