// Keep open tables open when the figures are refreshed.
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
