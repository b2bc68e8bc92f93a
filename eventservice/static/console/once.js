// Submit a form only once, however often its button is clicked. The admin uses this too.
(() => {
  "use strict";
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
    setTimeout(() => delete event.target.dataset.sent, 4000);
  });
})();
