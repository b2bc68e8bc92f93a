// The list of calls: selecting rows, short URLs of filters, bulk actions that continue by themselves.
(() => {
  "use strict";
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const PHONE = 720;
  let last = null; // the checkbox of the previous click, to select a range

  const boxes = () => all('input[name="call"]');

  const tell = () => {
    const form = document.getElementById("bulk");
    if (!form) return;
    const chosen = boxes().filter((box) => box.checked).length;
    const master = document.getElementById("all-on-page");
    master.hidden = false;
    master.checked = chosen > 0 && chosen === boxes().length;
    master.indeterminate = chosen > 0 && !master.checked;
    form.of.querySelector("[data-selected]").textContent = chosen + " selected";
    const none = form.of.value === "selected" && chosen === 0;
    all("button", form).forEach((button) => {
      button.disabled = none;
      button.title = none ? "Select calls first, or select all that match" : "";
    });
  };

  document.addEventListener("click", (event) => {
    const box = event.target.closest('input[name="call"]');
    if (box && event.shiftKey && last && last !== box) {
      const list = boxes();
      const [from, to] = [list.indexOf(last), list.indexOf(box)].sort((a, b) => a - b);
      list.slice(from, to + 1).forEach((one) => { one.checked = box.checked; });
    }
    if (box) last = box;
    // Menus close when something else is clicked.
    all("details.menu[open]").forEach((menu) => {
      if (!menu.contains(event.target)) menu.open = false;
    });
  });

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    all("details.menu[open]").forEach((menu) => {
      menu.open = false;
      menu.querySelector("summary").focus();
    });
  });

  document.addEventListener("change", (event) => {
    if (event.target.id === "all-on-page") boxes().forEach((box) => { box.checked = event.target.checked; });
    tell();
  });

  // The counts refresh, and the form that acts on all of them agrees with them.
  document.addEventListener("htmx:afterSettle", () => {
    const counts = document.getElementById("counts");
    const option = document.querySelector('#bulk-of option[value="matching"]');
    if (counts && option && counts.dataset.total) option.textContent = "All matching calls (" + counts.dataset.total + ")";
  });

  // Leave empty fields out of the URL.
  document.addEventListener("submit", (event) => {
    if (!("sparse" in event.target.dataset)) return;
    const dates = ["from", "to"].some((name) => event.target.elements[name] && event.target.elements[name].value);
    all("input, select", event.target).forEach((field) => {
      if (!field.value || (["by", "zone"].includes(field.name) && !dates)) field.disabled = true;
    });
  });

  // When the user navigates back, the browser restores this page as it was left.
  window.addEventListener("pageshow", () => {
    all("form[data-sparse] :disabled").forEach((field) => { field.disabled = false; });
    tell();
  });

  document.addEventListener("DOMContentLoaded", () => {
    tell();
    const filters = document.getElementById("filters");
    if (filters && window.innerWidth <= PHONE && !filters.querySelector("[aria-invalid]")) filters.open = false;
    const going = document.querySelector("form[data-continue]");
    if (!going) return;
    const timer = setTimeout(() => going.requestSubmit(), 700);
    going.querySelector("[data-stop]").addEventListener("click", () => clearTimeout(timer));
  });
})();
