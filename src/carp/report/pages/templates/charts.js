// Draws the charts of a page with Plotly, in the colours of the style sheet, light or dark.
"use strict";
const Carp = (() => {
  const read = (key) => {
    const element = document.getElementById("data-" + key);
    return element ? JSON.parse(element.textContent) : null;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // Replaces every "var(--name)" in a chart by the colour that it has now
  const resolved = (value) => {
    if (typeof value === "string" && value.startsWith("var(--")) return colour(value.slice(6, -1));
    if (Array.isArray(value)) return value.map(resolved);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, resolved(inner)]));
    }
    return value;
  };
  const axis = () => ({
    gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true,
    title: { font: { size: 12, color: colour("faint") } }, tickfont: { size: 11, color: colour("faint") },
  });
  const merged = (base, over) => {
    const result = { ...base };
    for (const [key, value] of Object.entries(over || {})) {
      const both = value && typeof value === "object" && !Array.isArray(value) && base[key];
      result[key] = both ? merged(base[key], value) : value;
    }
    return result;
  };
  const layout = (own) => merged({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 44, r: 12, t: 8, b: 36 },
    font: { family: "system-ui, sans-serif", color: colour("ink"), size: 12 }, hovermode: "x unified",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("ink"), size: 12 } },
    legend: { orientation: "h", x: 0, y: -0.3, yanchor: "top", font: { size: 11 } }, xaxis: axis(), yaxis: axis(),
    ...(own.yaxis2 ? { yaxis2: axis() } : {}),
  }, resolved(own));
  const settings = { displayModeBar: false, responsive: true, displaylogo: false };

  const onThemeChange = (redraw) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const drawCharts = () => {
    const charts = read("charts") || {};
    for (const element of document.querySelectorAll("[data-chart]")) {
      const chart = charts[element.dataset.chart];
      const draw = () => Plotly.react(element, resolved(chart.data), layout(chart.layout), settings);
      draw();
      onThemeChange(draw);
    }
  };
  document.addEventListener("DOMContentLoaded", drawCharts);
  return { read, colour, layout, onThemeChange };
})();
