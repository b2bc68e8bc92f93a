// Keyboard shortcuts, as the sheet in _shortcuts.html lists them. None acts while somebody types or a dialog is open.
(() => {
  "use strict";
  const SEQUENCE_MS = 1500;
  const ROWS = "main table.list tbody tr, main .attention li";
  const SEARCH_FIELD = "main [data-search], main .filters input:not([type=hidden])";
  const sheet = document.getElementById("shortcuts");
  const opener = document.querySelector("[data-shortcuts]");
  if (!sheet || !opener) return;

  const toggle = sheet.querySelector("[data-shortcuts-on]");
  const isOn = () => localStorage.getItem("shortcuts") !== "off";
  toggle.checked = isOn();
  toggle.addEventListener("change", () => localStorage.setItem("shortcuts", toggle.checked ? "on" : "off"));
  opener.hidden = false;
  opener.addEventListener("click", () => sheet.showModal());

  // --- rows: the focus is on the first link of the current one --------------------------------------------------------
  const rows = () => [...document.querySelectorAll(ROWS)].filter((row) => row.checkVisibility() && row.querySelector("a[href]"));
  const current = () => document.activeElement.closest(ROWS);
  const move = (step) => {
    const list = rows();
    const at = list.indexOf(current());
    const row = list[at < 0 ? (step > 0 ? 0 : list.length - 1) : Math.min(Math.max(at + step, 0), list.length - 1)];
    if (!row) return;
    row.querySelector("a[href]").focus();
    row.scrollIntoView({ block: "nearest" });
  };

  const actions = {
    search: () => {
      const field = document.querySelector(SEARCH_FIELD);
      if (!field) {
        // The list of calls has one. It looks for this part of the address below.
        const entry = sheet.querySelector("[data-search-page]");
        if (entry) location.assign(entry.dataset.searchPage + "#search");
        return;
      }
      const folded = field.closest("details");
      if (folded) folded.open = true;
      field.focus();
      if (field.select) field.select();
    },
    next: () => move(1),
    previous: () => move(-1),
    select: () => current()?.querySelector("input[type=checkbox]")?.click(),
    refresh: () => {
      const parts = document.querySelectorAll("[data-live]");
      parts.forEach((part) => htmx.trigger(part, "look"));
      if (!parts.length) location.reload();
    },
    pause: () => document.querySelector("[data-pause]")?.click(),
    help: () => sheet.showModal(),
  };

  if (location.hash === "#search") {
    history.replaceState(null, "", location.pathname + location.search);
    actions.search();
  }

  let begun = ""; // the keys of a sequence so far
  let timer;
  document.addEventListener("keydown", (event) => {
    if (!isOn() || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]")) return;
    if (document.querySelector("dialog[open]") || event.key.length !== 1) return;
    const all = [...sheet.querySelectorAll("[data-keys]")];
    const find = (keys) => all.find((entry) => entry.dataset.keys === keys);
    const keys = begun ? begun + " " + event.key : event.key;
    const entry = find(keys) || find(event.key);
    clearTimeout(timer);
    begun = all.some((one) => one.dataset.keys.startsWith(keys + " ")) ? keys : "";
    timer = setTimeout(() => { begun = ""; }, SEQUENCE_MS);
    if (!entry) return;
    event.preventDefault();
    if (entry.dataset.href) location.assign(entry.dataset.href);
    else actions[entry.dataset.do]();
  });
})();
