// What does not fit across the page: the page itself, boxes that scroll sideways, and controls of which a part is out
// of sight. Where a text ends in an ellipsis, or is written in an editor, that is as it should be.
() => {
  const found = new Map();
  const room = document.documentElement.clientWidth;
  const note = (element, what) => {
    const kind = element.tagName.toLowerCase() + [...element.classList].map((name) => "." + name).join("");
    const text = (element.innerText || element.name || "").trim().slice(0, 40);
    if (!found.has(kind)) found.set(kind, `${kind} “${text}” ${what}`);
  };
  const shown = (element) => {
    const box = element.getBoundingClientRect();
    return element.checkVisibility({ checkVisibilityCSS: true }) && box.width > 1 && box.height > 1;
  };

  const width = document.documentElement.scrollWidth;
  if (width > room) note(document.documentElement, `is ${width} wide`);

  for (const box of document.querySelectorAll("body *:not(textarea, pre)")) {
    const scrolls = ["auto", "scroll"].includes(getComputedStyle(box).overflowX);
    if (scrolls && shown(box) && box.scrollWidth > box.clientWidth + 1) note(box, `scrolls: ${box.scrollWidth} in ${box.clientWidth}`);
  }

  // The nearest box around that hides what is outside of it.
  const frame = (element) => {
    for (let box = element.parentElement; box !== document.body; box = box.parentElement) {
      const style = getComputedStyle(box);
      if (style.textOverflow === "ellipsis") return element.getBoundingClientRect();
      if (style.overflowX !== "visible") return box.getBoundingClientRect();
    }
    return { left: 0, right: room };
  };
  for (const control of document.querySelectorAll("a[href], button, summary, select, textarea, input:not([type=hidden])")) {
    if (!shown(control) || control.closest("svg, .skip")) continue;
    const { left, right } = control.getBoundingClientRect();
    const around = frame(control);
    if (left < Math.max(around.left, 0) - 1 || right > Math.min(around.right, room) + 1) note(control, `is cut: ${left} to ${right}`);
  }
  return [...found.values()];
}
