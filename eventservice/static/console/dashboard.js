// The dashboard: tooltips of charts, by mouse, touch and keyboard, and tables that stay open when the figures are refreshed.
(() => {
  "use strict";
  const NARROW = 12; // pixels between a column and its tooltip
  let shown = null; // { chart: id, at: number of the column, pinned: by keyboard or touch }

  const columnsOf = (chart) => [...chart.querySelectorAll("[data-when]")];

  // --- the tooltip: one for each chart, beside the column -------------------------------------------------------
  const getTip = (chart) => {
    const box = chart.parentElement;
    let tip = box.querySelector(".tip");
    if (!tip) {
      tip = document.createElement("div");
      tip.className = "tip";
      tip.setAttribute("aria-hidden", "true"); // the status line says the same
      box.append(tip);
    }
    return tip;
  };
  const fill = (tip, chart, column) => {
    const values = column.dataset.values.split("|");
    const when = document.createElement("strong");
    when.textContent = column.dataset.when + " UTC";
    const lines = chart.dataset.chart.split("|").map((name, n) => {
      const line = document.createElement("div");
      const mark = document.createElement("i");
      const value = document.createElement("b");
      mark.className = name.toLowerCase();
      value.textContent = values[n];
      line.append(mark, name, value);
      return line;
    });
    tip.replaceChildren(when, ...lines);
  };
  const place = (tip, chart, column) => {
    const box = chart.parentElement.getBoundingClientRect();
    const bar = column.querySelector(".hit").getBoundingClientRect();
    const right = bar.right - box.left + NARROW;
    const left = bar.left - box.left - NARROW - tip.offsetWidth;
    tip.style.left = Math.max(0, right + tip.offsetWidth <= box.width ? right : left) + "px";
  };
  const show = (chart, at, pinned, speak) => {
    const column = columnsOf(chart)[at];
    if (!column) return hide();
    if (shown && shown.chart !== chart.id) hide();
    document.querySelectorAll("[data-chart] .current").forEach((one) => one.classList.remove("current"));
    column.classList.add("current");
    const tip = getTip(chart);
    fill(tip, chart, column);
    tip.hidden = false;
    place(tip, chart, column);
    shown = { chart: chart.id, at, pinned };
    if (speak) {
      const names = chart.dataset.chart.split("|");
      const values = column.dataset.values.split("|").map((value, n) => value + " " + names[n].toLowerCase());
      document.getElementById("said").textContent = column.dataset.when + ": " + values.join(", ");
    }
  };
  const hide = () => {
    shown = null;
    document.querySelectorAll(".tip").forEach((tip) => { tip.hidden = true; });
    document.querySelectorAll("[data-chart] .current").forEach((one) => one.classList.remove("current"));
  };
  const find = (event) => {
    const column = event.target.closest && event.target.closest("[data-when]");
    const chart = column && column.closest("[data-chart]");
    return chart ? { chart, at: columnsOf(chart).indexOf(column) } : null;
  };

  // --- mouse ------------------------------------------------------------------------------------------------------
  document.addEventListener("pointermove", (event) => {
    if (event.pointerType === "touch") return;
    const found = find(event);
    if (found && !(shown && shown.chart === found.chart.id && shown.at === found.at)) show(found.chart, found.at, false);
    else if (!found && shown && !shown.pinned) hide();
  });

  // --- touch: the first tap shows the tooltip, the second opens the calls ----------------------------------------------
  let touched = false;
  document.addEventListener("pointerdown", (event) => { touched = event.pointerType === "touch"; });
  document.addEventListener("click", (event) => {
    if (!touched) return;
    const found = find(event);
    if (!found) {
      if (shown) hide();
    } else if (!(shown && shown.chart === found.chart.id && shown.at === found.at)) {
      event.preventDefault();
      show(found.chart, found.at, true);
    }
  });

  // --- keyboard: a chart is one stop of the Tab key, and arrows move among its columns ------------------------------------
  const prepare = () => {
    document.querySelectorAll("[data-chart]").forEach((chart) => {
      chart.tabIndex = 0;
      chart.querySelectorAll("a").forEach((link) => { link.tabIndex = -1; });
    });
  };
  document.addEventListener("focusin", (event) => {
    if (!event.target.matches("[data-chart]:focus-visible") || (shown && shown.chart === event.target.id)) return;
    show(event.target, columnsOf(event.target).length - 1, true, true);
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.matches("[data-chart]") && event.target.isConnected) hide();
  });
  document.addEventListener("keydown", (event) => {
    if (!event.target.matches || !event.target.matches("[data-chart]")) return;
    const chart = event.target;
    const last = columnsOf(chart).length - 1;
    const at = shown && shown.chart === chart.id ? shown.at : last;
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last };
    if (event.key in moves) {
      event.preventDefault();
      show(chart, Math.min(Math.max(moves[event.key], 0), last), true, true);
    } else if (event.key === "Enter") {
      const link = columnsOf(chart)[at]?.querySelector("a[href]");
      if (link) location.assign(link.getAttribute("href"));
    } else if (event.key === "Escape") {
      hide();
    }
  });

  // --- a refresh replaces the figures --------------------------------------------------------------------------------------
  let open = [];
  document.addEventListener("htmx:beforeSwap", () => {
    open = [...document.querySelectorAll("#figures details[open]")].map((one) => one.id);
  });
  document.addEventListener("htmx:afterSwap", () => {
    open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
    prepare();
    const chart = shown && document.getElementById(shown.chart);
    if (chart) show(chart, shown.at, shown.pinned);
    else hide();
  });
  document.addEventListener("DOMContentLoaded", prepare);
})();
