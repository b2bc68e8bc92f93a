// A choice is made at once; a table that is open stays open when the figures are renewed.
(() => {
  "use strict";
  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("[data-at-once]").forEach((field) => {
      field.form.querySelector("button").hidden = true;
      field.addEventListener("change", () => field.form.requestSubmit());
    });
  });
  let open = [];
  document.addEventListener("htmx:beforeSwap", () => {
    open = [...document.querySelectorAll("#figures details[open]")].map((one) => one.id);
  });
  document.addEventListener("htmx:afterSwap", () => {
    open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
  });
})();
