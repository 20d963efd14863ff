// The explorer: maps of the same images by one or several encoders, and panels about what is chosen.
"use strict";
Carp.Explorer = class {
  constructor(about) {
    this.about = about;
    this.count = about.images;
    this.space = 0;
    this.schemes = [];
    this.scheme = null;
    this.only = null; // a group, if only its points are to be seen
    this.chosen = new Uint32Array(0);
    this.steps = this.clusterSteps();
    this.k = about.clusters.usual;
    this.choose = (row) => this.showNeighbours(row);
    this.maps = [...document.querySelectorAll(".space")].map((element) => new Carp.PointMap(element.querySelector(".points"), {
      hover: (row) => this.hover(row, element),
      click: (row) => this.showNeighbours(row),
      lasso: (rows) => this.select(rows),
      painted: () => { this.painted = performance.now(); },
    }));
    this.listen();
    this.start();
  }

  part(name) { return document.getElementById(name); }

  pane(name, part) { return document.querySelector(`#pane-${name}${part ? ` [data-part=${part}]` : ""}`); }

  problem(words) {
    const line = this.part("problem");
    line.hidden = !words;
    line.textContent = words || "";
  }

  // Runs what a person asked for; a mistake is one line in the page
  async attempt(work) {
    this.problem(null);
    try {
      return await work();
    } catch (error) {
      this.problem(error.message || String(error));
      return null;
    }
  }

  async start() {
    await this.attempt(() => Promise.all(this.maps.map((map, number) => this.loadMap(number))));
    if (this.about.classes.length) {
      await this.attempt(async () => this.addScheme({ key: "class", name: "class", names: this.about.classes, values: new Int32Array(await Carp.ask("labels")) }));
    }
    await this.loadClusters();
    if (this.maps.length > 1) this.attempt(() => this.loadComparison());
    this.attempt(() => this.showExactness());
  }

  // Shows the map that there is; if a better one is being laid out, waits for it while everything else goes on
  async loadMap(number) {
    const state = await this.mapState(number);
    this.maps[number].setPoints(new Int16Array(await Carp.ask(`points/${number}/${state.version}`)));
    if (state.working) this.attempt(() => this.awaitMap(number, state.version));
  }

  async awaitMap(number, version) {
    for (let pause = 200; ; pause = Math.min(1500, pause * 1.3)) {
      await Carp.wait(pause);
      const state = await this.mapState(number);
      if (state.working) continue;
      if (state.version !== version) this.maps[number].setPoints(new Int16Array(await Carp.ask(`points/${number}/${state.version}`)));
      return;
    }
  }

  async mapState(number) {
    const state = await Carp.ask(`map/${number}`), method = document.querySelector(`[data-space="${number}"] [data-part=method]`);
    method.textContent = `Map: ${state.method}.` + (state.working ? ` ${Carp.progress("t-SNE is running", ...state.working)}` : "");
    return state;
  }

  async showExactness() {
    for (const number of this.maps.keys()) {
      const found = await Carp.poll(`exactness/${number}`);
      if (!found.exact) {
        const method = document.querySelector(`[data-space="${number}"] [data-part=method]`);
        method.after(Carp.element("p", { class: "faint" }, `Neighbours are approximate: ${(100 * found.recall).toFixed(1)}% of the ten nearest are found.`));
      }
    }
  }

  // Colours

  addScheme(scheme) {
    const select = this.part("colour"), known = this.schemes.findIndex((each) => each.key === scheme.key);
    if (known >= 0) {
      this.schemes[known] = scheme;
      if (this.scheme && this.scheme.key === scheme.key) this.setScheme(scheme.key);
      return;
    }
    this.schemes.push(scheme);
    select.add(new Option(scheme.name, scheme.key));
    if (!this.scheme) this.setScheme(scheme.key);
  }

  setScheme(key) {
    this.scheme = this.schemes.find((each) => each.key === key);
    this.part("colour").value = key;
    this.only = null;
    this.colour();
  }

  colourOf(group) { return Carp.palette[group % Carp.palette.length]; }

  colour() {
    if (!this.scheme) return;
    const { names, values } = this.scheme, rgba = new Uint8Array(4 * this.count), dense = this.count > 60000;
    const alpha = dense ? 150 : 205, faded = Carp.rgb(Carp.style("line")), palette = Carp.palette.map(Carp.rgb);
    let low = 0, high = 1;
    if (!names) {
      const sample = Float32Array.from({ length: Math.min(this.count, 20000) }, (_, place) => values[Math.floor(place * this.count / Math.min(this.count, 20000))]);
      const sorted = sample.filter((value) => !Number.isNaN(value)).sort();
      if (sorted.length) [low, high] = [0.02, 0.98].map((share) => sorted[Math.floor(share * (sorted.length - 1))]);
    }
    const selected = this.chosen.length ? this.mask : null;
    for (let row = 0; row < this.count; row++) {
      const value = values[row];
      const missing = names ? value < 0 : Number.isNaN(value);
      const shade = missing ? faded : names ? palette[value % palette.length] : Carp.onRamp((value - low) / (high - low || 1));
      const hidden = (this.only !== null && value !== this.only) || (selected && !selected[row]);
      const place = 4 * row, [red, green, blue] = hidden ? faded : shade;
      rgba[place] = red;
      rgba[place + 1] = green;
      rgba[place + 2] = blue;
      rgba[place + 3] = hidden || missing ? (dense ? 60 : 110) : alpha;
    }
    for (const map of this.maps) map.setColours(rgba);
    this.range = names ? null : [low, high];
    this.drawLegend();
  }

  drawLegend() {
    const legend = this.part("legend"), { names, values } = this.scheme;
    legend.replaceChildren();
    if (!names) {
      legend.append(Carp.element("span", { class: "scale" }, this.range[0].toFixed(2), Carp.element("i", { class: "ramp" }), this.range[1].toFixed(2)));
      return;
    }
    const counts = new Uint32Array(names.length);
    for (const value of values) if (value >= 0) counts[value]++;
    names.forEach((name, group) => {
      if (!counts[group]) return;
      const dot = Carp.element("i");
      dot.style.background = this.colourOf(group);
      legend.append(Carp.element("button", { type: "button", "aria-pressed": String(this.only === group), "data-group": group,
        onclick: () => this.showOnly(this.only === group ? null : group) }, dot, Carp.text(`${name} ${Carp.number(counts[group])}`)));
    });
  }

  showOnly(group) {
    this.only = group;
    this.colour();
  }

  // Clusters: the slider is logarithmic

  clusterSteps() {
    const { least, most } = this.about.clusters, steps = [];
    for (let place = 0; place <= 100; place++) steps.push(Math.round(least * (most / least) ** (place / 100)));
    return steps;
  }

  moveSlider() {
    const nearest = this.steps.reduce((best, value, place) => (Math.abs(value - this.k) < Math.abs(this.steps[best] - this.k) ? place : best), 0);
    this.part("clusters").value = nearest;
    this.part("cluster-count").textContent = this.k;
  }

  async loadClusters() {
    const k = this.k, space = this.space, path = `clusters/${space}/${k}`, pane = this.pane("groups"), output = this.part("cluster-count");
    this.moveSlider();
    const wanted = () => this.k === k && this.space === space;
    return this.attempt(async () => {
      output.textContent = `${k} …`;
      const found = await Carp.poll(path, { wanted });
      if (!found) return;
      const [own, certainty] = await Promise.all(["own", "certainty"].map((what) => Carp.poll(`${path}/${what}`)));
      if (!wanted()) return;
      output.textContent = k;
      const names = found.titles;
      this.addScheme({ key: "cluster", name: "cluster", names, values: new Int32Array(own) });
      this.addScheme({ key: "certainty", name: "certainty of the cluster", values: new Float32Array(certainty) });
      this.clusters = { k, space };
      pane.replaceChildren(
        Carp.element("p", { class: "faint" }, `${Carp.number(found.cards.length)} clusters by spherical k-means, the largest first. Mean certainty ${found.certainty.toFixed(2)}: 1 at a centre, 0 halfway between two.`),
        ...found.cards.map((card) => this.clusterCard(card, path)));
    });
  }

  clusterCard(card, path) {
    const dot = Carp.element("i", { class: "dot" });
    dot.style.background = this.colourOf(card.number);
    const show = () => { this.setScheme("cluster"); this.showOnly(card.number); };
    const open = Carp.element("button", { type: "button", onclick: () => {
      show();
      this.openDetail("groups", Carp.pages(`${path}/one/${card.number}`, this.choose, { title: `${card.title}, the most typical first`, actions: [
        Carp.element("button", { type: "button", onclick: () => this.selectGroup(card.number) }, "Select these images")] }));
    } }, "Open");
    return Carp.element("article", { class: "card", "data-cluster": card.number },
      Carp.element("h3", {}, dot, Carp.text(card.title), Carp.element("small", {}, `${Carp.number(card.size)} image${card.size === 1 ? "" : "s"}, mean cosine ${card.tightness.toFixed(2)}`)),
      Carp.row(card.images, this.choose),
      card.size > card.images.length ? Carp.element("details", {}, Carp.element("summary", {}, "least certain"), Carp.row(card.doubtful, this.choose)) : null,
      Carp.element("div", { class: "controls" }, Carp.element("button", { type: "button", onclick: show }, "Show on the map"), open));
  }

  selectGroup(group) {
    const values = this.schemes.find((each) => each.key === "cluster").values, rows = [];
    values.forEach((value, row) => { if (value === group) rows.push(row); });
    this.only = null;
    this.select(Uint32Array.from(rows));
  }

  // Shows one thing in place of a list, with a way back
  openDetail(name, detail) {
    const pane = this.pane(name), before = [...pane.childNodes], top = scrollY;
    const back = Carp.element("button", { type: "button", onclick: () => { pane.replaceChildren(...before); scrollTo(0, top); this.showOnly(null); } }, "← Back");
    pane.replaceChildren(back, detail);
    back.focus({ preventScroll: true });
  }

  // Prototypes, copies, comparison

  async loadPrototypes() {
    const space = this.space, pane = this.pane("prototypes"), path = `prototypes/${space}`;
    if (this.prototypes === space) return;
    pane.replaceChildren(Carp.element("p", { class: "faint" }, "Comparing images with prototypes …"));
    await this.attempt(async () => {
      const found = await Carp.poll(path);
      const [own, certainty] = await Promise.all(["own", "certainty"].map((what) => Carp.poll(`${path}/${what}`)));
      this.prototypes = space;
      const values = new Int32Array(own), most = values.reduce((a, b) => Math.max(a, b), 0);
      this.addScheme({ key: "prototype", name: "nearest prototype", names: Array.from({ length: most + 1 }, (_, number) => `prototype ${number}`), values });
      this.addScheme({ key: "prototype-certainty", name: "certainty of the prototype", values: new Float32Array(certainty) });
      const list = (title, about, ...cards) => [Carp.element("h3", { class: "over" }, title), Carp.element("p", { class: "faint" }, about), ...cards];
      pane.replaceChildren(
        Carp.element("p", { class: "faint" }, `${Carp.number(found.count)} prototypes compared with ${Carp.number(found.compared)} images; ${Carp.number(found.unused)} are not preferred by any image. A use of 1 means even use.`),
        ...list("The most used", "With their nearest images.", ...found.most.map((card) => this.prototypeCard(card, path))),
        ...list("The least used", "They may stand for rare images.", ...found.least.map((card) => this.prototypeCard(card, path))),
        ...list("Closest pairs", "Prototypes that point in nearly the same direction share one kind of image.",
          ...found.twins.map((pair) => Carp.element("div", { class: "twins" }, Carp.element("small", {}, `cosine ${pair.cosine.toFixed(3)}`), ...pair.cards.map((card) => this.prototypeCard(card, path))))),
        ...list("Outliers", "The images that are furthest from every prototype.", Carp.row(found.outliers, this.choose)));
    });
  }

  prototypeCard(card, path) {
    const show = () => { this.setScheme("prototype"); this.showOnly(card.number); };
    return Carp.element("article", { class: "card", "data-prototype": card.number },
      Carp.element("h3", {}, card.title, Carp.element("small", {}, `use ${card.share.toFixed(2)}`)), Carp.row(card.images, this.choose),
      Carp.element("div", { class: "controls" }, Carp.element("button", { type: "button", onclick: show }, "Show on the map"),
        Carp.element("button", { type: "button", onclick: () => { show(); this.openDetail("prototypes", Carp.pages(`${path}/one/${card.number}`, this.choose, { title: `${card.title}, the nearest first` })); } }, "Open")));
  }

  async loadCopies() {
    const space = this.space, pane = this.pane("copies");
    if (this.copies === space) return;
    this.copies = space;
    const line = Carp.element("p", { class: "faint" }, "Comparing all images with each other …");
    pane.replaceChildren(line);
    await this.attempt(async () => {
      const found = await Carp.poll(`copies/${space}`, { working: (done, all) => { line.textContent = Carp.progress("Comparing all images with each other", done, all); } });
      const groups = found.groups.map((group) => Carp.element("article", { class: "card", "data-copies": "" },
        Carp.element("h3", {}, `${group.images.length} images`, Carp.element("small", {}, `pixel agreement ${group.agreement.toFixed(2)}`)),
        Carp.row(group.images, this.choose)));
      const shown = found.count > found.groups.length ? `, the most certain ${found.groups.length} are shown` : "";
      pane.replaceChildren(Carp.element("p", { class: "faint" }, found.count
        ? `${Carp.number(found.count)} group${found.count === 1 ? "" : "s"} of near-duplicates${shown}. The first image of a group is the likely original. ${found.reason}.`
        : `No near-duplicates: ${found.reason}.`), ...groups);
    });
    if (!this.part("problem").hidden) { this.copies = null; pane.replaceChildren(); }
  }

  async loadComparison() {
    const pane = this.pane("comparison"), [one, other] = this.about.spaces;
    pane.replaceChildren(Carp.element("p", { class: "faint" }, "Comparing neighbours …"));
    const found = await Carp.poll("comparison");
    this.addScheme({ key: "kept", name: "neighbours kept", values: new Float32Array(await Carp.poll("comparison/kept")) });
    pane.replaceChildren(
      Carp.element("p", {}, Carp.text(`${one.name} and ${other.name} share ${(100 * found.mean).toFixed(0)}% of the ${found.neighbours} nearest neighbours of an image (mean of ${Carp.number(found.compared)} images).`)),
      Carp.element("p", { class: "faint" }, "Colour the maps by “neighbours kept” to see where they differ. Click an image to see its neighbours in both; those that only one encoder finds are framed."),
      Carp.element("h3", { class: "over" }, "Changed most"), Carp.row(found.least, this.choose),
      Carp.element("h3", { class: "over" }, "Changed least"), Carp.row(found.most, this.choose));
  }

  // Neighbours

  async showNeighbours(row) {
    this.openTab("image");
    await this.attempt(async () => {
      const asked = performance.now(), found = await Carp.ask(`neighbours/${row}`);
      this.answered = performance.now() - asked;
      this.showFound(found, Carp.element("img", { src: `picture/${row}/480`, alt: found.query.name }), found.query, row);
    });
  }

  async search(file) {
    this.openTab("image");
    await this.attempt(async () => {
      if (!file) return;
      const pane = this.pane("image", "found");
      pane.replaceChildren(Carp.element("p", { class: "faint" }, "Searching …"));
      try {
        const found = await Carp.ask("search", { method: "POST", body: file, headers: { "content-type": "application/octet-stream" } });
        const drawn = Carp.element("img", { alt: file.name });
        drawn.src = URL.createObjectURL(file);
        drawn.addEventListener("load", () => URL.revokeObjectURL(drawn.src));
        this.showFound(found, drawn, { name: file.name, label: "" }, -1);
      } catch (error) {
        pane.replaceChildren();
        throw error;
      }
    });
  }

  showFound(found, drawn, query, row) {
    const pane = this.pane("image", "found"), several = found.lists.length > 1;
    drawn.addEventListener("load", () => { if (Math.max(drawn.naturalWidth, drawn.naturalHeight) <= 80) drawn.classList.add("tiny"); });
    const about = [query.label && `class: ${query.label}`, this.clusterOf(row)].filter(Boolean).join(", ");
    pane.replaceChildren(Carp.element("figure", { class: "query" }, Carp.element("div", { class: "frame" }, drawn),
      Carp.element("figcaption", {}, Carp.text(query.name), about ? Carp.element("br") : null, about ? Carp.text(about) : null)));
    const rows = new Set();
    for (const list of found.lists) {
      if (!list.images.length) continue;
      const kept = list.images.filter((image) => image.kept).length;
      const title = several ? Carp.element("h3", { class: "over" }, Carp.text(list.space), Carp.element("small", {}, `${kept} of ${list.images.length} are shared`)) : Carp.element("h3", { class: "over" }, "Nearest neighbours");
      pane.append(title, Carp.row(list.images, this.choose, { marked: (image) => !image.kept }));
      list.images.forEach((image) => rows.add(image.row));
    }
    pane.append(Carp.element("div", { class: "controls" }, Carp.element("button", { type: "button", onclick: () => this.select(Uint32Array.from(rows).sort()) }, "Select these")));
    this.query = row;
    for (const [number, map] of this.maps.entries()) {
      const own = (found.lists[number] || found.lists[0]).images.map((image) => ({ row: image.row }));
      map.marks = row >= 0 ? [...own, { row, main: true }] : own;
      map.draw();
    }
  }

  clusterOf(row) {
    const scheme = this.schemes.find((each) => each.key === "cluster");
    return scheme && row >= 0 ? `cluster ${scheme.names[scheme.values[row]].replace(/^cluster /, "")}` : "";
  }

  // Hover: the same image on all maps, its picture beside the pointer

  async hover(row, element) {
    if (row === this.hovered) return;
    this.hovered = row;
    for (const map of this.maps) map.setCurrent(row);
    const tips = [...document.querySelectorAll(".space .tip")], tip = element.querySelector(".tip");
    for (const each of tips) if (each !== tip || row < 0) each.hidden = true;
    if (row < 0) return;
    const drawn = Carp.element("img", { src: `picture/${row}/160`, alt: "" });
    const lines = Carp.element("div", {});
    tip.replaceChildren(drawn, lines);
    tip.hidden = false;
    drawn.addEventListener("load", () => {
      if (Math.max(drawn.naturalWidth, drawn.naturalHeight) <= 80) drawn.classList.add("tiny");
      this.maps[Number(element.dataset.space)].placeTip();
    });
    await Carp.wait(40);
    if (this.hovered !== row) return;
    try {
      const image = await Carp.ask(`image/${row}`);
      if (this.hovered !== row) return;
      const value = this.scheme && !this.scheme.names ? `${this.scheme.name} ${this.scheme.values[row].toFixed(3)}` : "";
      lines.replaceChildren(...[image.label, this.clusterOf(row), value, image.name].filter(Boolean).map((line) => Carp.element("div", {}, Carp.text(line))));
      drawn.alt = image.name;
      this.maps[Number(element.dataset.space)].placeTip();
    } catch (error) {
      this.problem(error.message);
    }
  }

  // Selection

  select(rows) {
    this.chosen = rows;
    this.mask = new Uint8Array(this.count);
    for (const row of rows) this.mask[row] = 1;
    this.colour();
    const chosen = this.pane("selection", "chosen");
    chosen.hidden = !rows.length;
    this.pane("selection", "hint").hidden = Boolean(rows.length);
    this.pane("selection", "saved").textContent = "";
    const most = 60, first = [...rows.slice(0, most)];
    this.pane("selection", "count").textContent = `${Carp.number(rows.length)} image${rows.length === 1 ? "" : "s"}${rows.length > most ? `, the first ${most} are shown` : ""}`;
    if (!rows.length) return;
    this.openTab("selection");
    this.attempt(async () => {
      const images = await Promise.all(first.map((row) => Carp.ask(`image/${row}`)));
      if (this.chosen === rows) this.pane("selection", "images").replaceChildren(...images.map((image) => Carp.picture(image, this.choose)));
    });
  }

  sent() {
    const label = this.pane("selection", "label").value;
    return { method: "POST", body: this.chosen, headers: { "content-type": "application/octet-stream", "x-label": encodeURIComponent(label) } };
  }

  async download(kind) {
    await this.attempt(async () => {
      const text = await Carp.ask(`selection/${kind}`, this.sent()), link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
      link.download = kind === "csv" ? "selection.csv" : "selection.txt";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });
  }

  async save(kind) {
    await this.attempt(async () => {
      const found = await Carp.ask(`save/${kind}`, this.sent());
      this.pane("selection", "saved").replaceChildren("Saved: ", Carp.text(found.saved));
    });
  }

  // Controls

  openTab(name) {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const chosen = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      this.pane(tab.dataset.tab).hidden = !chosen;
    }
    if (name === "prototypes") this.loadPrototypes();
    if (name === "copies") this.loadCopies();
  }

  setTool(name) {
    for (const map of this.maps) {
      map.tool = name;
      map.element.dataset.tool = name;
    }
    for (const tool of ["move", "lasso"]) this.part(`tool-${tool}`).setAttribute("aria-pressed", String(tool === name));
  }

  listen() {
    this.part("colour").addEventListener("change", (event) => this.setScheme(event.target.value));
    let timer = 0;
    this.part("clusters").addEventListener("input", (event) => {
      this.k = this.steps[Number(event.target.value)];
      this.part("cluster-count").textContent = this.k;
      clearTimeout(timer);
      timer = setTimeout(async () => {
        await this.loadClusters();
        if (this.scheme && this.scheme.key !== "certainty" && this.schemes.some((each) => each.key === "cluster")) this.setScheme("cluster");
      }, 250);
    });
    if (this.part("space")) {
      this.part("space").addEventListener("change", (event) => {
        this.space = Number(event.target.value);
        this.loadClusters();
        for (const tab of ["prototypes", "copies"]) {
          if (this.pane(tab)) this.pane(tab).replaceChildren();
          if (document.querySelector(`[data-tab=${tab}][aria-selected=true]`)) this.openTab(tab);
        }
      });
    }
    for (const tool of ["move", "lasso"]) this.part(`tool-${tool}`).addEventListener("click", () => this.setTool(tool));
    this.part("whole").addEventListener("click", () => { for (const map of this.maps) map.reset(); });
    this.part("pictures").addEventListener("change", (event) => {
      for (const map of this.maps) { map.pictures = event.target.checked; map.draw(); }
    });
    const tabs = [...document.querySelectorAll("[role=tab]")];
    for (const [place, tab] of tabs.entries()) {
      tab.addEventListener("click", () => this.openTab(tab.dataset.tab));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = tabs[(place + step + tabs.length) % tabs.length];
        next.focus();
        this.openTab(next.dataset.tab);
      });
    }
    this.pane("selection", "clear").addEventListener("click", () => this.select(new Uint32Array(0)));
    for (const button of document.querySelectorAll("[data-get]")) button.addEventListener("click", () => this.download(button.dataset.get));
    for (const button of document.querySelectorAll("[data-save]")) button.addEventListener("click", () => this.save(button.dataset.save));
    this.part("file").addEventListener("change", (event) => { this.search(event.target.files[0]); event.target.value = ""; });
    const drop = this.part("drop");
    addEventListener("dragover", (event) => { event.preventDefault(); drop.hidden = false; });
    addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.hidden = true; });
    addEventListener("drop", (event) => {
      event.preventDefault();
      drop.hidden = true;
      if (event.dataTransfer.files.length) this.search(event.dataTransfer.files[0]);
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.colour());
  }
};
document.addEventListener("DOMContentLoaded", () => { Carp.explorer = new Carp.Explorer(Carp.read("about")); });
