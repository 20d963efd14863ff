// A map of up to a million points: drawn by WebGL, or pixel by pixel without a graphics card. Points are moved, zoomed, lassoed and walked
// through with arrow keys. What a point means is the business of whoever made the map.
"use strict";
const Carp = { read: (key) => JSON.parse(document.getElementById("data-" + key).textContent) };
Carp.style = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// Points sorted into a grid of cells, so that those near a place are found without looking at all
Carp.Grid = class {
  constructor(x, y) {
    this.x = x;
    this.y = y;
    this.side = Math.max(8, Math.min(512, Math.ceil(Math.sqrt(x.length / 4))));
    const cells = this.side * this.side, starts = new Uint32Array(cells + 1), own = new Uint32Array(x.length);
    for (let row = 0; row < x.length; row++) {
      own[row] = this.cell(y[row]) * this.side + this.cell(x[row]);
      starts[own[row] + 1]++;
    }
    for (let cell = 0; cell < cells; cell++) starts[cell + 1] += starts[cell];
    const next = starts.slice(0, cells);
    this.order = new Uint32Array(x.length);
    for (let row = 0; row < x.length; row++) this.order[next[own[row]]++] = row;
    this.starts = starts;
  }

  cell(value) { return Math.max(0, Math.min(this.side - 1, Math.floor((value + 1) / 2 * this.side))); }

  // Calls `visit` with every point whose cell touches a rectangle
  within(left, bottom, right, top, visit) {
    const [first, last] = [this.cell(left), this.cell(right)];
    for (let line = this.cell(bottom); line <= this.cell(top); line++) {
      const end = this.starts[line * this.side + last + 1];
      for (let place = this.starts[line * this.side + first]; place < end; place++) visit(this.order[place]);
    }
  }

  nearest(x, y, radius) {
    let best = -1, least = radius * radius;
    this.within(x - radius, y - radius, x + radius, y + radius, (row) => {
      const distance = (this.x[row] - x) ** 2 + (this.y[row] - y) ** 2;
      if (distance < least) [best, least] = [row, distance];
    });
    return best;
  }
};

// Draws points: with WebGL, positions and colours stay on the graphics card
Carp.GlPoints = class {
  constructor(gl) {
    this.gl = gl;
    const shader = (kind, code) => {
      const made = gl.createShader(kind);
      gl.shaderSource(made, code);
      gl.compileShader(made);
      return made;
    };
    const program = this.program = gl.createProgram();
    gl.attachShader(program, shader(gl.VERTEX_SHADER, `
      attribute float ax, ay, bx, by; attribute vec4 colour; uniform vec2 centre, factor; uniform float size, mixed; varying vec4 shade;
      void main() {
        gl_Position = vec4((mix(vec2(ax, ay), vec2(bx, by), mixed) - centre) * factor, 0.0, 1.0);
        gl_PointSize = size; shade = colour;
      }`));
    gl.attachShader(program, shader(gl.FRAGMENT_SHADER, `
      precision mediump float; varying vec4 shade; uniform float round;
      void main() {
        if (round > 0.5 && length(gl_PointCoord - 0.5) > 0.5) discard;
        gl_FragColor = vec4(shade.rgb * shade.a, shade.a);
      }`));
    gl.linkProgram(program);
    gl.useProgram(program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.place = Object.fromEntries(["ax", "ay", "bx", "by", "colour"].map((name) => [name, gl.getAttribLocation(program, name)]));
    this.uniform = Object.fromEntries(["centre", "factor", "size", "mixed", "round"].map((name) => [name, gl.getUniformLocation(program, name)]));
    this.before = gl.createBuffer();
    this.after = gl.createBuffer();
    this.colours = gl.createBuffer();
    this.count = 0;
  }

  attribute(buffer, name, size, kind, offset) {
    const gl = this.gl;
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.enableVertexAttribArray(this.place[name]);
    gl.vertexAttribPointer(this.place[name], size, kind, true, 0, offset);
  }

  setPoints(packed) {
    const gl = this.gl;
    [this.before, this.after] = [this.after, this.before];
    gl.bindBuffer(gl.ARRAY_BUFFER, this.after);
    gl.bufferData(gl.ARRAY_BUFFER, packed, gl.STATIC_DRAW);
    if (!this.count) {
      gl.bindBuffer(gl.ARRAY_BUFFER, this.before);
      gl.bufferData(gl.ARRAY_BUFFER, packed, gl.STATIC_DRAW);
    }
    this.count = packed.length / 2;
    const half = this.count * 2;
    for (const [buffer, x, y] of [[this.before, "ax", "ay"], [this.after, "bx", "by"]]) {
      this.attribute(buffer, x, 1, gl.SHORT, 0);
      this.attribute(buffer, y, 1, gl.SHORT, half);
    }
  }

  setColours(rgba) {
    const gl = this.gl;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.colours);
    gl.bufferData(gl.ARRAY_BUFFER, rgba, gl.STATIC_DRAW);
    this.attribute(this.colours, "colour", 4, gl.UNSIGNED_BYTE, 0);
  }

  draw(view, width, height, size, mixed) {
    const gl = this.gl;
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(this.uniform.centre, view.x, view.y);
    gl.uniform2f(this.uniform.factor, 2 * view.scale / width, 2 * view.scale / height);
    gl.uniform1f(this.uniform.size, size);
    gl.uniform1f(this.uniform.mixed, mixed);
    gl.uniform1f(this.uniform.round, size > 2.5 ? 1 : 0);
    gl.drawArrays(gl.POINTS, 0, this.count);
  }
};

// The same pixel by pixel: a hundred times as fast as WebGL that a processor imitates
Carp.PlainPoints = class {
  constructor(context) { this.context = context; }

  setPoints(packed) { this.packed = packed; this.count = packed.length / 2; }

  setColours(rgba) { this.rgba = rgba; }

  draw(view, width, height, size) {
    const image = this.context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer), count = this.count;
    const colours = new Uint32Array(this.rgba.buffer, this.rgba.byteOffset, count), side = Math.max(1, Math.round(size)), middle = (side - 1) / 2;
    // A disc: how many pixels every line of it leaves out at either end
    const spare = Array.from({ length: side }, (_, down) => Math.max(0, Math.round(middle - Math.sqrt(Math.max(0, (side / 2) ** 2 - (down - middle) ** 2)))));
    const left = width / 2 - view.x * view.scale - middle, top = height / 2 + view.y * view.scale - middle, unit = view.scale / 32767;
    for (let row = 0; row < count; row++) {
      const x = Math.round(left + this.packed[row] * unit), y = Math.round(top - this.packed[count + row] * unit);
      if (x < 0 || y < 0 || x + side > width || y + side > height) continue;
      const colour = colours[row];
      for (let down = 0, place = y * width + x; down < side; down++, place += width) {
        for (let right = spare[down], end = side - spare[down]; right < end; right++) pixels[place + right] = colour;
      }
    }
    this.context.putImageData(image, 0, 0);
  }
};

// Whether there is a graphics card
Carp.hasCard = () => {
  const gl = document.createElement("canvas").getContext("webgl"), about = gl && gl.getExtension("WEBGL_debug_renderer_info");
  return Boolean(gl) && !/swiftshader|llvmpipe|software|basic render/i.test(gl.getParameter(about ? about.UNMASKED_RENDERER_WEBGL : gl.RENDERER));
};

Carp.PointMap = class {
  constructor(element, events) {
    this.element = element;
    this.events = events;
    this.canvas = element.querySelector("[data-layer=points]");
    this.marksCanvas = element.querySelector("[data-layer=marks]");
    const card = Carp.hasCard();
    this.layer = card ? new Carp.GlPoints(this.canvas.getContext("webgl", { antialias: false })) : new Carp.PlainPoints(this.canvas.getContext("2d"));
    this.glides = card && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.tool = "move";
    this.current = -1;
    this.marks = [];
    this.mixed = 1;
    this.view = { x: 0, y: 0, scale: 1, whole: true };
    this.images = new Map();
    this.pictures = false;
    this.pointers = new Map();
    new ResizeObserver(() => this.resize()).observe(element);
    this.listen();
    this.resize();
  }

  // `packed` is Int16: all x, then all y
  setPoints(packed) {
    const count = packed.length / 2, again = Boolean(this.x);
    this.x = Float32Array.from(packed.subarray(0, count), (value) => value / 32767);
    this.y = Float32Array.from(packed.subarray(count), (value) => value / 32767);
    this.grid = null;
    this.layer.setPoints(packed);
    if (!this.coloured) {
      this.coloured = true;
      this.layer.setColours(new Uint8Array(4 * count).fill(128));
    }
    if (again && this.glides) this.glide();
    this.draw();
  }

  setColours(rgba) {
    this.coloured = true;
    this.rgba = rgba;
    this.layer.setColours(rgba);
    this.draw();
  }

  glide() {
    const start = performance.now();
    const step = (now) => {
      const share = Math.min(1, (now - start) / 700);
      this.mixed = share * share * (3 - 2 * share);
      this.draw();
      if (share < 1) requestAnimationFrame(step);
    };
    this.mixed = 0;
    requestAnimationFrame(step);
  }

  index() {
    if (!this.grid) this.grid = new Carp.Grid(this.x, this.y);
    return this.grid;
  }

  resize() {
    const box = this.element.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    this.width = Math.max(1, box.width);
    this.height = Math.max(1, box.height);
    this.ratio = ratio;
    for (const canvas of [this.canvas, this.marksCanvas]) {
      canvas.width = Math.round(this.width * ratio);
      canvas.height = Math.round(this.height * ratio);
    }
    if (this.view.whole) this.reset();
    this.draw();
  }

  reset() {
    this.view = { x: 0, y: 0, scale: 0.475 * Math.min(this.width, this.height) * (this.width > 1.4 * this.height ? 1.02 : 1), whole: true };
    this.draw();
  }

  // In CSS pixels from the corner of the map
  toScreen(row) {
    return [this.width / 2 + (this.x[row] - this.view.x) * this.view.scale, this.height / 2 - (this.y[row] - this.view.y) * this.view.scale];
  }

  toData(left, top) {
    return [(left - this.width / 2) / this.view.scale + this.view.x, (this.height / 2 - top) / this.view.scale + this.view.y];
  }

  zoom(factor, left = this.width / 2, top = this.height / 2) {
    const [x, y] = this.toData(left, top), fit = 0.475 * Math.min(this.width, this.height);
    const scale = Math.max(0.5 * fit, Math.min(4000 * fit, this.view.scale * factor));
    this.view = { x: x - (left - this.width / 2) / scale, y: y + (top - this.height / 2) / scale, scale, whole: false };
    this.draw();
  }

  pointSize() {
    const count = this.x.length, zoomed = this.view.scale / (0.475 * Math.min(this.width, this.height));
    const base = count > 400000 ? 1.2 : count > 60000 ? 2 : count > 15000 ? 3 : count > 3000 ? 4.5 : 7;
    return Math.min(14, base * Math.sqrt(Math.max(1, zoomed)));
  }

  draw() {
    if (this.waiting || !this.x) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      const view = { ...this.view, scale: this.view.scale * this.ratio };
      this.layer.draw(view, this.canvas.width, this.canvas.height, this.pointSize() * this.ratio, this.mixed);
      this.drawMarks();
      this.placeTip();
      if (!this.painted) {
        this.painted = performance.now();
        this.events.painted();
      }
    });
  }

  drawMarks() {
    const context = this.marksCanvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    if (this.pictures && this.mixed === 1) this.drawPictures(context);
    const ring = (row, radius, colour, width) => {
      const [left, top] = this.toScreen(row);
      context.beginPath();
      context.arc(left, top, radius, 0, 2 * Math.PI);
      context.lineWidth = width + 2;
      context.strokeStyle = Carp.style("card");
      context.stroke();
      context.lineWidth = width;
      context.strokeStyle = colour;
      context.stroke();
    };
    const radius = Math.max(5, this.pointSize() / 2 + 3);
    if (this.mixed === 1) {
      for (const mark of this.marks) ring(mark.row, mark.main ? radius + 4 : radius, Carp.style(mark.main ? "bad" : "ink"), mark.main ? 3 : 1.5);
      if (this.current >= 0) ring(this.current, radius + 1, Carp.style("accent"), 2.5);
    }
    if (this.path && this.path.length > 1) {
      context.beginPath();
      this.path.forEach(([left, top], place) => (place ? context.lineTo(left, top) : context.moveTo(left, top)));
      context.closePath();
      context.fillStyle = Carp.style("accent-tint");
      context.fill();
      context.lineWidth = 1.5;
      context.strokeStyle = Carp.style("accent");
      context.stroke();
    }
  }

  // One image for every part of the map that has one
  drawPictures(context) {
    const step = this.width < 500 ? 42 : 52, side = step - 10, grid = this.index(), reach = step / 2 / this.view.scale;
    for (let top = step / 2; top < this.height; top += step) {
      for (let left = step / 2; left < this.width; left += step) {
        const row = grid.nearest(...this.toData(left, top), reach);
        if (row < 0) continue;
        const picture = this.picture(row);
        if (!picture.complete || !picture.naturalWidth) continue;
        const share = side / Math.max(picture.naturalWidth, picture.naturalHeight), width = picture.naturalWidth * share;
        const height = picture.naturalHeight * share;
        const colour = this.rgba ? this.rgba.subarray(4 * row, 4 * row + 3).join() : "128, 128, 128";
        context.fillStyle = `rgb(${colour})`;
        context.fillRect(left - width / 2 - 2.5, top - height / 2 - 2.5, width + 5, height + 5);
        context.imageSmoothingQuality = "high";
        context.drawImage(picture, left - width / 2, top - height / 2, width, height);
      }
    }
  }

  picture(row) {
    let picture = this.images.get(row);
    if (!picture) {
      if (this.images.size > 1500) this.images.delete(this.images.keys().next().value);
      picture = new Image();
      picture.addEventListener("load", () => this.draw());
      picture.src = `picture/${row}/64`;
      this.images.set(row, picture);
    }
    return picture;
  }

  place(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  at(left, top) {
    return this.x ? this.index().nearest(...this.toData(left, top), Math.max(9, this.pointSize()) / this.view.scale) : -1;
  }

  setCurrent(row) {
    this.current = row;
    this.draw();
  }

  listen() {
    const element = this.element;
    element.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...this.place(event));
    }, { passive: false });
    element.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      element.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, this.place(event));
      this.down = this.place(event);
      this.moved = false;
      if (this.tool === "lasso" && this.pointers.size === 1) this.path = [this.down];
    });
    element.addEventListener("pointermove", (event) => this.pointerMoved(event));
    const released = (event) => {
      if (!this.pointers.delete(event.pointerId)) return;
      const path = this.path;
      this.path = null;
      if (path && this.moved) this.events.lasso(this.inside(path));
      else if (!this.moved && event.type === "pointerup") {
        const row = this.at(...this.place(event));
        if (row >= 0) this.events.click(row);
      }
      this.draw();
    };
    element.addEventListener("pointerup", released);
    element.addEventListener("pointercancel", released);
    element.addEventListener("pointerleave", () => { if (!this.pointers.size) this.events.hover(-1); });
    element.addEventListener("blur", () => this.events.hover(-1));
    element.addEventListener("dblclick", (event) => this.zoom(2, ...this.place(event)));
    element.addEventListener("keydown", (event) => this.key(event));
  }

  pointerMoved(event) {
    const here = this.place(event), before = this.pointers.get(event.pointerId);
    if (!before) {
      this.events.hover(this.at(...here));
      return;
    }
    if (Math.hypot(here[0] - this.down[0], here[1] - this.down[1]) > 4) this.moved = true;
    if (this.pointers.size === 2) {
      const other = [...this.pointers].find(([id]) => id !== event.pointerId)[1];
      const grown = Math.hypot(here[0] - other[0], here[1] - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1]));
      this.path = null;
      this.zoom(grown, (here[0] + other[0]) / 2, (here[1] + other[1]) / 2);
    } else if (this.path) {
      this.path.push(here);
      this.draw();
    } else if (this.moved) {
      this.view = { ...this.view, x: this.view.x - (here[0] - before[0]) / this.view.scale, y: this.view.y + (here[1] - before[1]) / this.view.scale, whole: false };
      this.draw();
    }
    this.pointers.set(event.pointerId, here);
  }

  // The rows inside a closed line
  inside(path) {
    const line = path.map(([left, top]) => this.toData(left, top)), xs = line.map((each) => each[0]), ys = line.map((each) => each[1]);
    const [left, right] = [Math.min(...xs), Math.max(...xs)], [bottom, top] = [Math.min(...ys), Math.max(...ys)], found = [];
    this.index().within(left, bottom, right, top, (row) => {
      const x = this.x[row], y = this.y[row];
      if (x < left || x > right || y < bottom || y > top) return;
      let odd = false;
      for (let one = 0, other = line.length - 1; one < line.length; other = one++) {
        if (ys[one] > y !== ys[other] > y && x < (xs[other] - xs[one]) * (y - ys[one]) / (ys[other] - ys[one]) + xs[one]) odd = !odd;
      }
      if (odd) found.push(row);
    });
    return Uint32Array.from(found).sort();
  }

  key(event) {
    if (!this.x) return;
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (step) this.events.hover(this.next(step));
    else if (event.key === "Enter" && this.current >= 0) this.events.click(this.current);
    else if (event.key === "+" || event.key === "=") this.zoom(1.5);
    else if (event.key === "-") this.zoom(1 / 1.5);
    else if (event.key === "0") this.reset();
    else if (event.key === "Escape") this.events.hover(-1);
    else return;
    event.preventDefault();
  }

  // The nearest point in a direction
  next([right, up]) {
    const from = this.current < 0 ? [this.view.x, this.view.y] : [this.x[this.current], this.y[this.current]];
    if (this.current < 0) return this.index().nearest(...from, 4);
    let best = this.current, least = Infinity;
    for (let row = 0; row < this.x.length; row++) {
      const dx = this.x[row] - from[0], dy = this.y[row] - from[1], along = dx * right + dy * up, across = Math.abs(dx * up) + Math.abs(dy * right);
      if (along > 0 && across <= along && along + across < least && row !== this.current) [best, least] = [row, along + across];
    }
    return best;
  }

  placeTip() {
    const tip = this.element.querySelector(".tip");
    if (tip.hidden || this.current < 0) return;
    const [left, top] = this.toScreen(this.current), beyond = left + 16 + tip.offsetWidth > this.width;
    tip.style.left = `${Math.max(0, beyond ? left - 16 - tip.offsetWidth : left + 16)}px`;
    tip.style.top = `${Math.max(0, Math.min(top - 20, this.height - tip.offsetHeight))}px`;
  }
};
