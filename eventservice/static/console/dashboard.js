// A table that is open stays open when the figures are renewed.
(() => {
  "use strict";
  let open = [];
  document.addEventListener("htmx:beforeSwap", () => {
    open = [...document.querySelectorAll("#figures details[open]")].map((one) => one.id);
  });
  document.addEventListener("htmx:afterSwap", () => {
    open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
  });
})();
