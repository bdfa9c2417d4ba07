// Line charts over time, drawn as SVG.

import { clock } from "./format.js";

const ns = "http://www.w3.org/2000/svg";
const [height, left, right, top, bottom] = [190, 52, 8, 8, 20];

function svg(name, attributes, text) {
  const element = document.createElementNS(ns, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text != null) element.textContent = text;
  return element;
}

/** The next larger of 1, 2, 5, 10, 20, ... */
function roundUp(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= most * 0.999999);
}

/**
 * Draws `series` ({name, color, key}) of `points` ({at_ms, ...}) into `box`; `format` writes a value.
 * The legend shows the values at the pointer, or at the point that the arrow keys select.
 */
export function lineChart(box, points, series, format) {
  const state = (box.chart ??= { chosen: null });
  state.draw = () => draw(box, points, series, format, state);
  if (!state.ready) {
    state.ready = true;
    box.tabIndex = 0;
    box.setAttribute("role", "img");
    box.addEventListener("pointermove", (event) => {
      const area = box.getBoundingClientRect();
      choose((event.clientX - area.left - left) / (area.width - left - right));
    });
    box.addEventListener("pointerleave", () => choose(null));
    box.addEventListener("blur", () => choose(null));
    box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      choose(Math.min(1, Math.max(0, (state.chosen ?? 1) + step / Math.max(1, state.points - 1))));
    });
    new ResizeObserver(() => state.draw()).observe(box);
  }
  const choose = (share) => {
    state.chosen = share == null ? null : Math.min(1, Math.max(0, share));
    state.draw();
  };
  state.points = points.length;
  state.draw();
}

function draw(box, points, series, format, state) {
  const width = Math.max(200, box.clientWidth);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const values = points.flatMap((p) => series.map((s) => p[s.key] ?? 0));
  const most = roundUp(Math.max(0, ...values));
  const x = (i) => left + ((width - left - right) * i) / Math.max(1, points.length - 1);
  const y = (value) => top + (height - top - bottom) * (1 - value / most);
  for (const share of [0, 0.5, 1]) {
    const at = y(most * share);
    root.append(svg("line", { class: "gridline", x1: left, x2: width - right, y1: at, y2: at }));
    root.append(svg("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, format(most * share)));
  }
  if (points.length > 1) {
    const times = [[0, "start"], [points.length - 1, "end"]];
    for (const [i, anchor] of times)
      root.append(svg("text", { x: x(i), y: height - 4, "text-anchor": anchor }, clock(points[i].at_ms)));
  } else {
    root.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no data yet"));
  }
  for (const { color, key } of series) {
    let path = "";
    let gap = true;
    points.forEach((p, i) => {
      if (p[key] == null) return void (gap = true);
      path += `${gap ? "M" : "L"}${x(i).toFixed(1)} ${y(p[key]).toFixed(1)}`;
      // A lone point is a dot.
      if (gap) path += "h0.01";
      gap = false;
    });
    root.append(svg("path", { d: path, stroke: `var(${color})`, "stroke-linecap": "round" }));
  }
  const chosen = state.chosen == null ? points.length - 1 : Math.round(state.chosen * (points.length - 1));
  if (state.chosen != null && points.length > 1)
    root.append(svg("line", { class: "cross", x1: x(chosen), x2: x(chosen), y1: top, y2: height - bottom }));
  const legend = document.createElement("div");
  legend.className = "legend";
  const labels = [];
  for (const { name, color, key } of series) {
    const entry = document.createElement("span");
    entry.className = "key";
    const swatch = document.createElement("i");
    swatch.className = "swatch";
    swatch.style.background = `var(${color})`;
    const value = format(points[chosen]?.[key]);
    entry.append(swatch, `${name} ${value}`);
    labels.push(`${name} ${value}`);
    legend.append(entry);
  }
  if (state.chosen != null && points[chosen]) legend.append(`at ${clock(points[chosen].at_ms)}`);
  box.setAttribute("aria-label", labels.join(", "));
  box.replaceChildren(root, legend);
}
