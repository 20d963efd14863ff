// Maps of images: points with thumbnails, colours to choose, a lasso that lists what it holds. Names are text everywhere.
"use strict";
Carp.palette = ["#4269d0", "#e8902a", "#d5494f", "#5aa9a2", "#3f9b4f", "#8e5fc2", "#e06fa8", "#9a6a3c", "#6f8fdb",
  "#c8a200", "#7a8794", "#1f8fb3", "#b5533c", "#7fae2d", "#b04c9b", "#4d6b3c"];

Carp.ImageMap = class {
  constructor(element, data) {
    this.element = element;
    this.data = data;
    const numbers = (text, kind) => new kind(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
    this.x = Float32Array.from(numbers(data.x, Int16Array), (value) => value / 32767);
    this.y = Float32Array.from(numbers(data.y, Int16Array), (value) => value / 32767);
    this.places = numbers(data.thumbnails.places, Int16Array);
    this.colours = data.colours.map((each) => ({ ...each, values: numbers(each.values, each.names ? Int32Array : Float32Array) }));
    this.shown = null; // a class, if only its points are to be seen
    this.chosen = [];
    this.current = -1;
    this.part("about").textContent = `${this.x.length.toLocaleString("en")} images, ${data.method}`;
    this.fillColours();
    this.draw();
    this.listen();
  }

  part(name) { return this.element.querySelector(`[data-part="${name}"]`); }

  colourOf(number) { return Carp.palette[number % Carp.palette.length]; }

  fillColours() {
    const select = this.part("colour");
    this.colours.forEach((each, place) => select.add(new Option(each.name, place)));
    select.addEventListener("change", () => { this.shown = null; this.draw(); });
  }

  scheme() { return this.colours[Number(this.part("colour").value || 0)]; }

  marker() {
    const scheme = this.scheme(), count = this.x.length, size = count > 8000 ? 4 : count > 2000 ? 5 : 7;
    if (!scheme) return { size, color: Carp.colour("accent"), opacity: 0.75 };
    if (scheme.names) {
      const faded = Carp.colour("line");
      const color = Array.from(scheme.values, (value) =>
        value < 0 || (this.shown !== null && value !== this.shown) ? faded : this.colourOf(value));
      return { size, color, opacity: 0.8 };
    }
    const sorted = Float32Array.from(scheme.values).sort();
    const [low, high] = [0.02, 0.98].map((share) => sorted[Math.floor(share * (sorted.length - 1))]);
    return { size, color: Array.from(scheme.values), opacity: 0.85, colorscale: "Viridis", cmin: low, cmax: high,
      showscale: true, colorbar: { thickness: 10, len: 0.6, outlinewidth: 0, tickfont: { size: 11, color: Carp.colour("faint") } } };
  }

  draw() {
    const bare = { visible: false, showgrid: false, zeroline: false, range: [-1.08, 1.08] };
    const layout = Carp.layout({
      margin: { l: 0, r: 0, t: 0, b: 0 }, hovermode: "closest", dragmode: this.mode || "pan", showlegend: false,
      xaxis: { ...bare }, yaxis: { ...bare, scaleanchor: "x" }, uirevision: "map", selectionrevision: "map",
      modebar: { bgcolor: "rgba(0,0,0,0)", color: Carp.colour("faint"), activecolor: Carp.colour("accent") },
    });
    const gl = Carp.hasWebGL();
    const trace = { type: gl ? "scattergl" : "scatter", mode: "markers", x: this.x, y: this.y, hoverinfo: "none",
      marker: this.marker(), selected: { marker: { opacity: 1 } }, unselected: { marker: { opacity: 0.15 } } };
    if (this.chosen.length) trace.selectedpoints = this.chosen;
    const buttons = [["pan2d", "lasso2d", "select2d"], ["zoomIn2d", "zoomOut2d", "resetScale2d"]];
    Plotly.react(this.part("plot"), [trace], layout, { responsive: true, displaylogo: false, scrollZoom: true,
      displayModeBar: true, modeBarButtons: buttons });
    this.drawLegend();
  }

  drawLegend() {
    const legend = this.part("legend"), scheme = this.scheme();
    legend.replaceChildren();
    if (!scheme || !scheme.names) return;
    const counts = new Map();
    scheme.values.forEach((value) => counts.set(value, (counts.get(value) || 0) + 1));
    scheme.names.forEach((name, number) => {
      if (!counts.has(number)) return;
      const button = document.createElement("button"), dot = document.createElement("i"), text = document.createElement("bdi");
      button.type = "button";
      dot.style.background = this.colourOf(number);
      text.textContent = `${name} ${counts.get(number).toLocaleString("en")}`;
      button.setAttribute("aria-pressed", String(this.shown === number));
      button.append(dot, text);
      button.addEventListener("click", () => { this.shown = this.shown === number ? null : number; this.draw(); });
      legend.append(button);
    });
  }

  listen() {
    const plot = this.part("plot"), tip = this.part("tip");
    plot.on("plotly_hover", (event) => this.showTip(event.points[0].pointNumber));
    plot.on("plotly_unhover", () => { tip.hidden = true; });
    plot.on("plotly_selected", (event) => this.choose(event ? event.points.map((point) => point.pointNumber) : []));
    plot.on("plotly_deselect", () => this.choose([]));
    plot.on("plotly_relayout", (event) => { if (event.dragmode) this.mode = event.dragmode; });
    plot.addEventListener("keydown", (event) => this.move(event));
    plot.addEventListener("blur", () => { tip.hidden = true; });
    this.part("clear").addEventListener("click", () => { this.choose([]); this.draw(); });
    this.part("save").addEventListener("click", () => this.save());
    Carp.onThemeChange(() => this.draw());
  }

  thumbnail(row, scale) {
    const { side, columns, size, src } = this.data.thumbnails, place = this.places[row];
    const box = document.createElement("div");
    box.className = "thumb";
    Object.assign(box.style, { width: `${side * scale}px`, height: `${side * scale}px` });
    if (place < 0) return box;
    Object.assign(box.style, { backgroundImage: `url("${src}")`, backgroundSize: `${size[0] * scale}px ${size[1] * scale}px`,
      backgroundPosition: `${-(place % columns) * side * scale}px ${-Math.floor(place / columns) * side * scale}px` });
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", this.data.names[row]);
    return box;
  }

  describe(row) {
    return this.colours.map((each) => {
      const value = each.values[row];
      if (!each.names) return `${each.name} ${value.toFixed(3)}`;
      return value < 0 ? "" : `${each.name}: ${each.names[value]}`;
    }).filter(Boolean);
  }

  showTip(row) {
    const tip = this.part("tip"), plot = this.part("plot"), full = plot._fullLayout;
    this.current = row;
    tip.replaceChildren();
    if (this.places[row] >= 0) tip.append(this.thumbnail(row, 2));
    for (const line of this.describe(row)) {
      const text = document.createElement("div"), part = document.createElement("bdi");
      part.textContent = line;
      text.append(part);
      tip.append(text);
    }
    const name = document.createElement("bdi");
    name.className = "name";
    name.textContent = this.data.names[row];
    tip.append(name);
    tip.hidden = false;
    const left = full.xaxis.l2p(this.x[row]) + full.xaxis._offset, top = full.yaxis.l2p(this.y[row]) + full.yaxis._offset;
    const beyond = left + 14 + tip.offsetWidth > plot.offsetWidth;
    tip.style.left = `${Math.max(0, beyond ? left - 14 - tip.offsetWidth : left + 14)}px`;
    tip.style.top = `${plot.offsetTop + Math.max(0, Math.min(top - 20, plot.offsetHeight - tip.offsetHeight))}px`;
  }

  // Arrow keys: the nearest point in that direction
  move(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!step) return;
    event.preventDefault();
    let best = -1, least = Infinity;
    const from = this.current < 0 ? [0, 0] : [this.x[this.current], this.y[this.current]];
    for (let row = 0; row < this.x.length; row++) {
      const dx = this.x[row] - from[0], dy = this.y[row] - from[1];
      const along = dx * step[0] + dy * step[1], across = Math.abs(dx * step[1]) + Math.abs(dy * step[0]);
      const cost = this.current < 0 ? Math.hypot(dx, dy) : along > 0 && across <= along ? along + across : Infinity;
      if (row !== this.current && cost < least) [best, least] = [row, cost];
    }
    if (best >= 0) this.showTip(best);
  }

  choose(rows) {
    this.chosen = rows;
    const most = 300, list = this.part("list");
    this.part("chosen").hidden = !rows.length;
    this.part("count").textContent = rows.length > most
      ? `${rows.length.toLocaleString("en")} images, the first ${most} are shown` : `${rows.length} image${rows.length === 1 ? "" : "s"}`;
    list.replaceChildren(...rows.slice(0, most).map((row) => {
      const item = document.createElement("li"), name = document.createElement("bdi");
      name.textContent = this.data.names[row];
      item.append(this.thumbnail(row, 2), name);
      return item;
    }));
    this.element.dispatchEvent(new CustomEvent("carp-chosen", { detail: rows }));
  }

  save() {
    const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
    const scheme = this.scheme(), words = scheme && scheme.names ? scheme : null;
    const lines = this.chosen.map((row) => [quoted(this.data.folder + this.data.names[row]),
      ...(words ? [quoted(words.names[words.values[row]] || "")] : [])].join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([["image", ...(words ? [words.name] : [])].join(",") + "\n" + lines.join("\n") + "\n"], { type: "text/csv" }));
    link.download = "selection.csv";
    link.click();
  }
};

Carp.hasWebGL = () => {
  if (Carp.webgl === undefined) {
    const canvas = document.createElement("canvas");
    Carp.webgl = Boolean(canvas.getContext("webgl"));
  }
  return Carp.webgl;
};
Carp.maps = {};
document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll("[data-map]")) {
    Carp.maps[element.dataset.map] = new Carp.ImageMap(element, Carp.read(element.dataset.map));
  }
});
