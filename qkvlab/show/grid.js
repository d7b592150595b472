// Attention maps of one or two models: layers x heads, one colour scale, one head enlarged with its tokens. Plain ES module.
// Python side: grid.py. Frames come as float32 bytes: (models, L, H, T, T), rows queries, columns keys.

const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const ramp = (stops, t) => {
  const at = Math.max(0, Math.min(1, t)) * (stops.length - 1), i = Math.min(stops.length - 2, Math.floor(at)), f = at - i;
  return stops[i].map((v, c) => Math.round(v + (stops[i + 1][c] - v) * f));
};
const WEIGHTS = Array.from({ length: 256 }, (_, i) => ramp(CIVIDIS.map(rgb), i / 255));
const signed = (dark) => Array.from({ length: 256 }, (_, i) => ramp([rgb("#0072B2"), dark ? [62, 66, 72] : [230, 231, 233], rgb("#D55E00")], i / 255));
const SCALES = [0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1]; // steps, so that the colours do not flicker while a model learns

const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
};
const floats = (data) => {
  if (!data || !data.byteLength) return new Float32Array();
  const buffer = data.buffer ?? data, start = data.byteOffset ?? 0;
  return new Float32Array(buffer.slice(start, start + data.byteLength));
};
const rich = (text) => text.split(/(W_[QKVO])/).flatMap((part, i) => (i % 2 ? ["W", make("sub", {}, part[2])] : [part]));
const spoken = (text) => text.replace(/W_([QKV])=I/, (_, m) => `${{ Q: "query", K: "key", V: "value" }[m]} = identity`); // a list sets no subscripts
const visible = (token) => token.replaceAll("\n", "↵").replaceAll(" ", "␣").replaceAll("\t", "⇥");

function render({ model, el }) {
  let frame = null; // {data, n, L, H, T, tokens, symmetry, shown, causal, step, scale, spread}
  let head = [0, 0], cell = null, hover = null, large = false, difference = false, waiting = 0;
  const scheme = matchMedia("(prefers-color-scheme: dark)"); // of the system; JupyterLab has a theme of its own
  const isDark = () => (document.body.dataset.jpThemeLight ?? String(!scheme.matches)) === "false";

  // ---- the page
  const choose = (side) => make("select", { "aria-label": `Model on the ${side}`, onchange: (e) => model.send({ command: "choose", side, index: +e.target.value }) });
  const pickers = { left: choose("left"), right: choose("right") };
  const between = make("button", { type: "button", "data-command": "difference", "aria-pressed": "false", title: "Right map minus left map, in a scale around zero",
    onclick: () => { difference = !difference; later(); } }, "Difference");
  const back = make("button", { type: "button", "data-command": "back", onclick: () => { large = false; cell = null; later(); stage.querySelector("canvas")?.focus(); } }, "All heads");
  const bar = make("canvas", { width: 220, height: 20, "aria-hidden": "true" }), low = make("span"), high = make("span");
  const key = make("span", { class: "key small push" }, low, bar, high);
  const note = make("p", { class: "small" }), stage = make("div", { class: "pair" });
  const readout = make("p", { class: "readout small", "aria-live": "polite" });
  const root = make("section", { class: "qkv qkv-grid", "aria-label": "Attention maps" },
    make("div", { class: "bar" }, pickers.left, pickers.right, between, back, key), note, stage, readout);
  el.replaceChildren(root);

  const at = (m, [l, h], i, j) => frame.data[(((m * frame.L + l) * frame.H + h) * frame.T + i) * frame.T + j];
  const name = (m) => model.get("models")[frame.shown[m]]?.label ?? "";
  const panels = () => (difference && frame.n > 1 ? [-1] : [...Array(frame.n).keys()]);
  const value = (m, hd, i, j) => (m < 0 ? at(1, hd, i, j) - at(0, hd, i, j) : at(m, hd, i, j));

  const read = (content, data) => {
    const [n, L, H, T] = content.shape ?? [0, 0, 0, 0];
    if (!n || data.length !== n * L * H * T * T) { frame = null; return; }
    const before = frame;
    frame = { ...content, data, n, L, H, T };
    let top = 0, gap = 0;
    const sample = [], size = L * H * T * T;
    for (let i = 0; i < data.length; i += 1 + (data.length >> 14)) if (data[i] > 0) sample.push(data[i]);
    sample.sort((a, b) => a - b);
    top = sample[Math.floor(sample.length * 0.97)] ?? 1; // the first rows of a causal map are near 1 and would dim the rest
    frame.scale = SCALES.find((s) => s >= top) ?? 1;
    if (n > 1) {
      for (let i = 0; i < size; i++) gap = Math.max(gap, Math.abs(data[i + size] - data[i]));
      frame.spread = SCALES.find((s) => s >= gap * 0.6) ?? 1;
    }
    if (!before || before.L !== L || before.H !== H) { head = [Math.min(head[0], L - 1), Math.min(head[1], H - 1)]; }
    if (!before || before.T !== T || before.L !== L || before.H !== H) cell = hover = null;
  };

  // ---- drawing
  const picture = (m, hd) => { // one map, one pixel an entry
    const T = frame.T, small = new OffscreenCanvas(T, T), image = small.getContext("2d").createImageData(T, T);
    const table = m < 0 ? signed(isDark()) : WEIGHTS, top = m < 0 ? frame.spread : frame.scale;
    for (let i = 0, p = 0; i < T; i++) for (let j = 0; j < T; j++, p += 4) {
      if (frame.causal && j > i) continue; // masked: the page shows through
      const v = value(m, hd, i, j), t = m < 0 ? (v / top + 1) / 2 : v / top;
      const c = table[Math.max(0, Math.min(255, Math.round(t * 255)))];
      image.data[p] = c[0]; image.data[p + 1] = c[1]; image.data[p + 2] = c[2]; image.data[p + 3] = 255;
    }
    small.getContext("2d").putImageData(image, 0, 0);
    return small;
  };
  const layout = (m, width) => { // where the maps lie, in CSS pixels
    const { L, H, T } = frame;
    if (!large) {
      const gap = 6, L0 = 20, T0 = 18, foot = 15, side = Math.floor((width - L0 - gap * (H - 1)) / H);
      return { side, height: T0 + L * (side + foot) + 2, spots: Array.from({ length: L * H }, (_, i) => ({ head: [Math.floor(i / H), i % H], x: L0 + (i % H) * (side + gap), y: T0 + Math.floor(i / H) * (side + foot) })) };
    }
    const longest = Math.max(...frame.tokens.map((t) => visible(t).length)), short = longest < 3;
    const room = 18 + (short ? 16 : Math.min(76, 7 * longest)), side = Math.min(width - room, 560);
    return { side, height: side + room, room, short, spots: [{ head, x: room, y: room }] };
  };
  const draw = () => {
    waiting = 0;
    const models = model.get("models");
    for (const [side, picker] of Object.entries(pickers)) {
      const options = models.map((f, i) => make("option", { value: i }, spoken(f.label)));
      if (side === "right") options.unshift(make("option", { value: -1 }, "no second model"));
      if (picker.children.length !== options.length || [...picker.children].some((o, i) => o.textContent !== options[i].textContent)) picker.replaceChildren(...options);
      picker.value = String(model.get(side));
      picker.hidden = !frame || models.length < 2;
    }
    note.textContent = model.get("note");
    root.hidden = !frame && !note.textContent;
    between.hidden = !frame || frame.n < 2; back.hidden = !large || !frame; key.hidden = !frame;
    between.setAttribute("aria-pressed", difference);
    if (!frame) { stage.replaceChildren(); readout.textContent = ""; return; }
    const shown = panels();
    if (stage.children.length !== shown.length) {
      stage.replaceChildren(...shown.map(() => {
        const canvas = make("canvas", { tabindex: "0", role: "application" });
        listen(canvas);
        return make("div", {}, make("h4"), canvas);
      }));
    }
    shown.forEach((m, i) => {
      const box = stage.children[i], face = models[frame.shown[Math.max(m, 0)]] ?? {}, heading = box.firstChild, canvas = box.lastChild;
      const text = m < 0 ? `${name(1)} minus ${name(0)}` : face.label ?? "";
      if (heading.dataset.text !== text) {
        const badge = make("span");
        if (m >= 0) badge.innerHTML = face.badge ?? ""; // our own drawing, made in Python
        heading.replaceChildren(badge, make("span", {}, ...rich(text)));
        heading.dataset.text = text;
      }
      canvas.dataset.model = m;
      paint(canvas, m);
    });
    const c = bar.getContext("2d"), table = difference && frame.n > 1 ? signed(isDark()) : WEIGHTS;
    for (let i = 0; i < 220; i++) { c.fillStyle = `rgb(${table[Math.round((i / 219) * 255)]})`; c.fillRect(i, 0, 1, 20); }
    low.textContent = difference && frame.n > 1 ? `−${frame.spread}` : "0";
    high.textContent = difference && frame.n > 1 ? `+${frame.spread}` : frame.scale < 1 ? `≥ ${frame.scale}` : "1";
    tell();
  };
  const paint = (canvas, m) => {
    const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
    if (!width) return;
    const plan = layout(m, width), c = canvas.getContext("2d"), ink = getComputedStyle(root).color;
    canvas.style.height = `${plan.height}px`;
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(plan.height * ratio);
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.imageSmoothingEnabled = false;
    c.font = `11px ${getComputedStyle(root).fontFamily}`; c.fillStyle = c.strokeStyle = ink;
    const focused = root.getRootNode().activeElement === canvas;
    for (const { head: hd, x, y } of plan.spots) {
      c.globalAlpha = 1;
      c.drawImage(picture(m, hd), x, y, plan.side, plan.side);
      if (!large && hd[0] === head[0] && hd[1] === head[1] && focused) { c.lineWidth = 2.5; c.strokeRect(x - 1.5, y - 1.5, plan.side + 3, plan.side + 3); }
      c.globalAlpha = 0.75;
      const score = m >= 0 ? frame.symmetry?.[m]?.[hd[0]]?.[hd[1]] : undefined;
      if (!large && score !== undefined) { c.textAlign = "center"; c.textBaseline = "top"; c.fillText(`sym ${score >= 0 ? "+" : "−"}${Math.abs(score).toFixed(2)}`, x + plan.side / 2, y + plan.side + 1); }
    }
    c.globalAlpha = 0.75; c.textBaseline = "middle"; c.textAlign = "center";
    if (!large) {
      for (const { head: [l, h], x, y } of plan.spots) {
        if (l === 0) c.fillText(plan.side > 40 ? `head ${h + 1}` : h + 1, x + plan.side / 2, 8);
        if (h === 0) { c.save(); c.translate(8, y + plan.side / 2); c.rotate(-Math.PI / 2); c.fillText(plan.side > 40 ? `layer ${l + 1}` : l + 1, 0, 0); c.restore(); }
      }
    } else {
      const step = plan.side / frame.T, every = Math.ceil(10 / step);
      frame.tokens.forEach((token, i) => {
        if (i % every) return;
        c.globalAlpha = cell && (cell[0] === i || cell[1] === i) ? 1 : 0.75;
        c.textAlign = "right"; c.fillText(visible(token), plan.room - 4, plan.room + (i + 0.5) * step);
        c.save(); c.translate(plan.room + (i + 0.5) * step, plan.room - (plan.short ? 8 : 4));
        if (!plan.short) c.rotate(-Math.PI / 2);
        c.textAlign = plan.short ? "center" : "left"; c.fillText(visible(token), 0, 0); c.restore();
      });
      c.textAlign = "left"; c.globalAlpha = 0.6; c.fillText("key →", plan.room, 7); c.save(); c.translate(7, plan.room); c.rotate(-Math.PI / 2); c.textAlign = "right"; c.fillText("← query", 0, 0); c.restore();
      if (cell) { c.globalAlpha = 1; c.lineWidth = 2; c.strokeStyle = "#fff"; c.strokeRect(plan.room + cell[1] * step, plan.room + cell[0] * step, step, step); c.strokeStyle = "#000"; c.lineWidth = 1; c.strokeRect(plan.room + cell[1] * step - 1.5, plan.room + cell[0] * step - 1.5, step + 3, step + 3); }
    }
  };
  const later = () => { if (!waiting) waiting = requestAnimationFrame(draw); };

  // ---- reading: where one is, in words
  const words = (hd, ij) => {
    const parts = [`Layer ${hd[0] + 1}, head ${hd[1] + 1}`];
    if (ij) {
      const [i, j] = ij;
      parts[0] += `: query “${visible(frame.tokens[i])}” (${i + 1}) reads key “${visible(frame.tokens[j])}” (${j + 1})`;
      if (frame.causal && j > i) parts.push("masked: a token does not see later ones");
      else {
        for (let m = 0; m < frame.n; m++) parts.push(`${name(m)} ${at(m, hd, i, j).toFixed(3)}`);
        if (frame.n > 1) parts.push(`difference ${value(-1, hd, i, j).toFixed(3)}`);
      }
    } else for (let m = 0; m < frame.n; m++) {
      const score = frame.symmetry?.[m]?.[hd[0]]?.[hd[1]];
      if (score !== undefined) parts.push(`${name(m)}: symmetry ${score.toFixed(2)}`);
    }
    return parts.join(" · ");
  };
  const tell = () => { // at every drawing: what is under the pointer or has the focus stays told while a model learns
    if (!frame) return;
    const focused = stage.contains(root.getRootNode().activeElement);
    const hint = large ? "Move over the map, or use the arrow keys, to read a weight. Escape shows all heads." : "Click a head, or press Enter on it, to enlarge it. “sym” is the symmetry of W_Q W_Kᵀ: 1 tied, 0 unrelated.";
    readout.replaceChildren(...rich(hover ? words(hover.head, hover.cell) : cell || focused ? words(head, cell) : hint));
    for (const box of stage.children) {
      const m = +box.lastChild.dataset.model, where = frame.step == null ? "" : ` at step ${frame.step}`;
      box.lastChild.setAttribute("aria-label", `${m < 0 ? `Difference of attention maps, ${name(1)} minus ${name(0)}` : `Attention maps of ${name(m)}`}${where}, ${frame.L} layers of ${frame.H} heads, ${frame.T} tokens. ${words(head, cell)}. Arrow keys move, Enter enlarges.`);
    }
  };
  const under = (event) => { // the head and the entry below the pointer
    const canvas = event.currentTarget, box = canvas.getBoundingClientRect(), plan = layout(+canvas.dataset.model, canvas.clientWidth);
    const px = event.clientX - box.left, py = event.clientY - box.top;
    const spot = plan.spots.find((s) => px >= s.x && px < s.x + plan.side && py >= s.y && py < s.y + plan.side);
    if (!spot) return null;
    return { head: spot.head, cell: [Math.floor(((py - spot.y) / plan.side) * frame.T), Math.floor(((px - spot.x) / plan.side) * frame.T)] };
  };
  const listen = (canvas) => {
    canvas.addEventListener("pointermove", (e) => {
      const hit = frame && under(e);
      if (!hit) return;
      if (large) { cell = hit.cell; later(); } else { hover = hit; tell(); }
    });
    canvas.addEventListener("pointerleave", () => { if (frame) { cell = hover = null; later(); } });
    canvas.addEventListener("click", (e) => {
      const hit = frame && under(e);
      if (!hit) return;
      if (large) cell = hit.cell; else { head = hit.head; large = true; cell = hover = null; }
      later();
    });
    canvas.addEventListener("focus", later); canvas.addEventListener("blur", later);
    canvas.addEventListener("keydown", (e) => {
      if (!frame) return;
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
      if (move) {
        const limit = large ? [frame.T, frame.T] : [frame.L, frame.H], from = large ? cell ?? [frame.T - 1, -1] : head;
        const to = from.map((v, i) => Math.max(0, Math.min(limit[i] - 1, v + move[i])));
        if (large) cell = to; else head = to;
      } else if (e.key === "Enter" || e.key === " ") { large = !large; cell = null; }
      else if (e.key === "Escape" && large) { large = false; cell = null; }
      else return;
      hover = null;
      e.preventDefault(); e.stopPropagation();
      draw();
    });
  };

  // ---- what Python says
  const kept = () => { read(model.get("about"), floats(model.get("frame"))); later(); };
  let queued = false;
  const again = () => { if (!queued) { queued = true; queueMicrotask(() => { queued = false; kept(); }); } };
  const onFrame = (content, buffers) => {
    if (content?.type !== "maps" || content.epoch !== model.get("epoch")) return;
    read(content, floats(buffers?.[0])); later();
  };
  const listeners = { "msg:custom": onFrame, "change:frame": again, "change:epoch": again, "change:note": later, "change:left": later, "change:right": later };
  for (const [event, f] of Object.entries(listeners)) model.on(event, f);
  const observer = new ResizeObserver(later); observer.observe(root);
  const recolour = () => setTimeout(later, 60);
  scheme.addEventListener("change", recolour);
  const theme = new MutationObserver(recolour); theme.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
  kept();
  return () => {
    for (const [event, f] of Object.entries(listeners)) model.off(event, f);
    observer.disconnect(); theme.disconnect(); scheme.removeEventListener("change", recolour); cancelAnimationFrame(waiting);
  };
}

export default { render };
