// A form is sent once, however often its button is pressed. The admin's pages take this too.
(() => {
  "use strict";
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
    setTimeout(() => delete event.target.dataset.sent, 4000);
  });
})();
