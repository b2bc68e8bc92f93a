// The Request page: line numbers beside the body, rows that can be removed.
(() => {
  "use strict";
  const all = (selector, within = document) => within.querySelectorAll(selector);

  // --- the body's line numbers; the line that is wrong is marked ----------------------------------------------
  const number = (area) => {
    const gutter = area.parentElement.querySelector(".gutter");
    const lines = area.value.split("\n").length;
    const said = document.getElementById("body-said");
    const wrong = Number((said && said.dataset.wrongLine) || 0);
    const state = lines + ":" + wrong;
    if (gutter.dataset.state !== state) {
      const parts = [];
      for (let line = 1; line <= lines; line += 1) {
        if (line === wrong) {
          const mark = document.createElement("b");
          mark.textContent = line;
          parts.push(mark);
        } else {
          parts.push(document.createTextNode(line + "\n"));
        }
      }
      gutter.replaceChildren(...parts);
      gutter.dataset.state = state;
    }
    gutter.hidden = false;
    gutter.style.height = area.clientHeight + "px";
    gutter.scrollTop = area.scrollTop;
  };
  const bodies = () => all(".editor textarea").forEach(number);
  document.addEventListener("input", (event) => {
    if (!event.target.matches(".editor textarea")) return;
    const said = document.getElementById("body-said");
    if (said) said.dataset.wrongLine = ""; // of the text as it was
    number(event.target);
  });
  document.addEventListener("scroll", (event) => {
    if (event.target.matches && event.target.matches(".editor textarea")) number(event.target);
  }, true);

  // --- rows ----------------------------------------------------------------------------------------------------
  const rows = () => all("[data-remove-row]").forEach((button) => (button.hidden = false));
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-remove-row]");
    if (!button) return;
    const row = button.closest(".header-row");
    const next = row.nextElementSibling || row.previousElementSibling;
    if (next) row.remove();
    else all("input", row).forEach((input) => (input.value = ""));
    (next || row).querySelector("input").focus();
  });

  // --- a login that comes in between: what was typed is kept for it, in this tab, but for the values of headers -----
  const KEPT = "request";
  const form = () => document.getElementById("request-form");
  const who = () => document.querySelector(".who .clip").textContent;
  const keep = () => {
    const told = { csrfmiddlewaretoken: null, curl: null, header_value: "" };
    const typed = [...new FormData(form())]
      .map(([name, value]) => [name, name in told ? told[name] : value])
      .filter(([, value]) => value !== null);
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ who: who(), typed }));
    } catch {
      // There is no room for it.
    }
  };
  const restore = () => {
    const kept = JSON.parse(sessionStorage.getItem(KEPT));
    sessionStorage.removeItem(KEPT);
    if (!kept || kept.who !== who() || !("unsent" in form().dataset)) return;
    const token = form().elements.csrfmiddlewaretoken.value;
    const again = document.createElement("form");
    again.method = "post";
    again.action = form().action;
    [...kept.typed, ["csrfmiddlewaretoken", token], ["do", "restore"]].forEach(([name, value]) => {
      const field = document.createElement("textarea"); // an input would take the line breaks out
      field.name = name;
      field.value = value;
      again.append(field);
    });
    again.hidden = true;
    document.body.append(again);
    again.submit();
  };
  document.addEventListener("submit", (event) => {
    if (event.target === form()) keep();
  });
  document.addEventListener("htmx:beforeOnLoad", (event) => {
    if (event.detail.xhr.status === 401) keep();
  });

  const begin = () => {
    bodies();
    rows();
  };
  document.addEventListener("DOMContentLoaded", () => {
    restore();
    begin();
    const wrong = document.querySelector("#request-form [aria-invalid]");
    if (wrong) wrong.focus();
    if ("ResizeObserver" in window) {
      const observer = new ResizeObserver(bodies);
      all(".editor textarea").forEach((area) => observer.observe(area));
    }
  });
  document.addEventListener("htmx:afterSettle", begin);
})();
