// Parts of the explorer's page: pictures with captions, cards, questions to the server. Names are text everywhere.
"use strict";
Carp.element = (name, options = {}, ...inside) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(key, value);
  }
  made.append(...inside.filter((each) => each !== null && each !== undefined));
  return made;
};
Carp.number = (value) => value.toLocaleString("en");
Carp.text = (words) => { const made = document.createElement("bdi"); made.textContent = words; return made; };

// An image as a button that shows its neighbours
Carp.picture = (image, choose, { marked = false, words = null, side = 160 } = {}) => {
  const drawn = Carp.element("img", { src: `picture/${image.row}/${side}`, alt: image.name, loading: "lazy", decoding: "async" });
  drawn.addEventListener("load", () => { if (Math.max(drawn.naturalWidth, drawn.naturalHeight) <= 80) drawn.classList.add("tiny"); });
  const number = image.value === undefined ? null : Carp.element("b", {}, image.value.toFixed(2));
  const lines = [image.label, words, image.name.split("/").pop()].filter(Boolean).map((line) => {
    const text = Carp.text(line);
    text.className = "name";
    text.title = line === image.name.split("/").pop() ? image.name : line;
    return text;
  });
  return Carp.element("figure", { class: `picture${marked ? " changed" : ""}`, "data-row": image.row },
    Carp.element("button", { type: "button", class: "frame", "aria-label": `Neighbours of ${image.name}`, onclick: () => choose(image.row) }, drawn),
    Carp.element("figcaption", {}, number, ...lines));
};
Carp.row = (images, choose, options = {}) => Carp.element("div", { class: "row small" },
  ...images.map((image) => Carp.picture(image, choose, { ...options, marked: options.marked ? options.marked(image) : false, words: image.size || null })));

// Questions: JSON that may say that work is under way, and arrays of numbers
Carp.ask = async (path, options = {}) => {
  const answer = await fetch(path, options);
  if (!answer.ok) throw new Error(`The server answered ${answer.status}. Is carp explore still running?`);
  if ((answer.headers.get("content-type") || "").startsWith("application/octet-stream")) return answer.arrayBuffer();
  const found = await answer.json();
  if (found.error) throw new Error(found.error);
  return found;
};
Carp.wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
Carp.poll = async (path, { working = () => {}, wanted = () => true } = {}) => {
  for (let pause = 60; wanted(); pause = Math.min(1000, pause * 1.5)) {
    const found = await Carp.ask(path);
    if (found instanceof ArrayBuffer || found.working === undefined || found.working === null) return found;
    working(...found.working);
    await Carp.wait(pause);
  }
  return null;
};
Carp.progress = (what, done, all) => (all ? `${what}: ${Math.round(100 * done / all)}%` : `${what} …`);

// A list of images of one thing, which grows on request
Carp.pages = (path, choose, { title, actions = [] }) => {
  const list = Carp.element("div", { class: "row small" }), more = Carp.element("button", { type: "button" }, "More");
  let shown = 0;
  const load = async () => {
    const found = await Carp.poll(`${path}/${shown}`);
    list.append(...found.images.map((image) => Carp.picture(image, choose)));
    shown += found.images.length;
    more.hidden = shown >= found.count || !found.images.length;
  };
  more.addEventListener("click", load);
  load();
  return Carp.element("article", { class: "detail" }, Carp.element("h3", {}, Carp.text(title)),
    Carp.element("div", { class: "controls" }, ...actions), list, more);
};

// Colours
Carp.palette = ["#4269d0", "#e8902a", "#d5494f", "#5aa9a2", "#3f9b4f", "#8e5fc2", "#e06fa8", "#9a6a3c", "#6f8fdb",
  "#c8a200", "#7a8794", "#1f8fb3", "#b5533c", "#7fae2d", "#b04c9b", "#4d6b3c"];
Carp.rgb = (hex) => [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
Carp.ramp = [[68, 1, 84], [71, 45, 123], [59, 82, 139], [44, 114, 142], [33, 145, 140], [40, 174, 128], [94, 201, 98], [173, 220, 48], [253, 231, 37]];
Carp.onRamp = (share) => {
  const place = Math.max(0, Math.min(0.9999, share)) * (Carp.ramp.length - 1), low = Math.floor(place);
  return Carp.ramp[low].map((value, channel) => value + (Carp.ramp[low + 1][channel] - value) * (place - low));
};
