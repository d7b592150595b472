// The training panel: buttons, loss curves, words. Plain ES module, nothing from a network. Python side: panel.py.
// New points come as float32 bytes in "tick" messages; everything a fresh view needs is in the traits.

const WORDS = {
  empty: "Nothing to train yet", ready: "Ready", starting: "Starting", waiting: "Waiting", running: "Training", paused: "Paused", stopped: "Stopped",
  done: "Done", saved: "Saved run", diverged: "Diverged", "out of memory": "Out of memory", "disk full": "Disk full",
  interrupted: "Interrupted", error: "Not possible",
};
const BAD = new Set(["diverged", "out of memory", "disk full", "error"]);
const ICONS = {
  play: "M3 1l11 7-11 7z", pause: "M2 1h4v14H2zM10 1h4v14h-4z", step: "M2 1l8 7-8 7zM11 1h3v14h-3z", stop: "M2 2h12v12H2z",
  reset: "M8 2a6 6 0 1 1-5.7 4.1l1.9.6A4 4 0 1 0 8 4v3L3.5 3.5 8 0z", pin: "M5 1h6l-1 5 3 3H9v6l-1 1-1-1V9H3l3-3z",
  zoom: "M7 1a6 6 0 0 1 4.7 9.7l4 4-1.4 1.4-4-4A6 6 0 1 1 7 1zm0 2a4 4 0 1 0 0 8 4 4 0 0 0 0-8z",
};
const DASH = { solid: [], dash: [7, 4], dot: [2, 3], dashdot: [8, 3, 2, 3], longdash: [12, 4], longdashdot: [12, 3, 2, 3] };

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
const icon = (name) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(svg.namespaceURI, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
};
const floats = (data) => {
  if (!data || !data.byteLength) return new Float32Array();
  const buffer = data.buffer ?? data, start = data.byteOffset ?? 0;
  return new Float32Array(buffer.slice(start, start + data.byteLength)); // a copy: the offset need not be a multiple of 4
};
const rich = (text) => text.split(/(W_[QKVO])/).flatMap((part, i) => (i % 2 ? ["W", make("sub", {}, part[2])] : [part])); // W_Q as it is set in the text
const clock = (s) => (s < 90 ? `${Math.max(1, Math.round(s))} s` : s < 5400 ? `${Math.round(s / 60)} min` : `${(s / 3600).toFixed(1)} h`);
const nice = (low, high, count) => {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power, ticks = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) ticks.push(v);
  return [ticks, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))];
};

function render({ model, el }) {
  // ---- the curves: steps[i], and for each arm mean[i], low[i], high[i]
  let curves, rate = 0, left = 0, reached = 0, cursor = null, zoomed = false, frame = 0;
  const load = () => {
    const arms = model.get("arms"), width = 1 + 3 * arms.length, rows = floats(model.get("history"));
    curves = { steps: [], arms: arms.map(() => ({ mean: [], low: [], high: [] })), validation: [...model.get("validation")], ended: [...model.get("ended")] };
    append(rows, width);
    reached = curves.steps.at(-1) ?? 0;
    rate = left = 0;
  };
  const append = (rows, width) => {
    for (let i = 0; i + width <= rows.length; i += width) {
      if (rows[i] <= (curves.steps.at(-1) ?? -1)) continue; // a late view gets some points twice
      curves.steps.push(rows[i]);
      curves.arms.forEach((arm, a) => {
        arm.mean.push(rows[i + 1 + 3 * a]); arm.low.push(rows[i + 2 + 3 * a]); arm.high.push(rows[i + 3 + 3 * a]);
      });
    }
  };

  // ---- the page
  const ask = (command, argument = null) => model.send({ command, argument });
  const button = (name, text, help, extra = {}) =>
    make("button", { type: "button", title: help, "data-command": name, onclick: () => ask(name), ...extra }, icon(name), make("span", {}, text));
  const word = make("span", { class: "word" }), message = make("span", { class: "small" });
  const primary = button("play", "Train", "Start, or go on", { class: "primary", onclick: () => ask(primary.dataset.command) });
  const buttons = [primary, button("step", "Step", "Take one step of every model"), button("stop", "Stop", "End this run; it stays saved"),
    button("reset", "Reset", "Throw this run away and begin again"), button("pin", "Pin", "Keep these curves to compare with later runs")];
  const zoom = make("button", { type: "button", "data-command": "zoom", "aria-pressed": "false", title: "Show the second half of the run larger",
    onclick: () => { zoomed = !zoomed; zoom.setAttribute("aria-pressed", zoomed); later(); } }, icon("zoom"), make("span", {}, "Late steps"));
  const meter = make("span", { class: "small push meter" });
  const bar = make("i"), canvas = make("canvas", { tabindex: "0", role: "img", "aria-describedby": "" });
  const tip = make("div", { class: "tip", "aria-hidden": "true", hidden: "" }), spoken = make("div", { class: "hidden", "aria-live": "polite" });
  const head = make("tr", {}, make("th", {}, "model"), make("th", { class: "n" }, "training"), make("th", { class: "n" }, "validation"));
  const body = make("tbody"), finding = make("p", { class: "finding", "aria-live": "polite" });
  const root = make("section", { class: "qkv qkv-panel", "aria-label": "Training" },
    make("div", { class: "says", role: "status", "aria-live": "polite" }, word, message),
    make("div", { class: "bar", role: "toolbar", "aria-label": "Training controls" }, ...buttons, zoom, meter),
    make("div", { class: "progress", "aria-hidden": "true" }, bar),
    make("div", { class: "figure" }, canvas, tip), spoken,
    make("table", {}, make("caption", { class: "hidden" }, "Loss of each model"), make("thead", {}, head), body), finding);
  el.replaceChildren(root);

  const pixel = make("canvas", { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const isDark = () => { // whether the page's ink is light; it may be given in any colour space, so it is painted and read
    pixel.fillStyle = getComputedStyle(root).color; pixel.fillRect(0, 0, 1, 1);
    return pixel.getImageData(0, 0, 1, 1).data[1] > 128;
  };
  let dark = false;
  const shown = (colour) => { // the variants' colours are made for white: lift the dark ones where the page is dark
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)), light = 0.3 * r + 0.6 * g + 0.1 * b;
    return dark && light < 120 ? `rgb(${[r, g, b].map((v) => Math.round(v + (255 - v) * 0.35))})` : colour;
  };
  const swatch = (arm, old) => {
    const mark = make("canvas", { class: "swatch", width: "56", height: "20", style: "width:28px;height:10px", "aria-hidden": "true" });
    const c = mark.getContext("2d");
    c.scale(2, 2); stroke(c, arm, old ? 0.55 : 1, old ? 1.2 : 2.2); c.beginPath(); c.moveTo(0, 5); c.lineTo(28, 5); c.stroke();
    return mark;
  };
  const stroke = (c, arm, alpha, width) => {
    c.globalAlpha = alpha; c.strokeStyle = c.fillStyle = shown(arm.colour); c.lineWidth = width; c.lineJoin = "round"; c.setLineDash(DASH[arm.dash] ?? []);
  };
  const name = (arm, old, suffix = "") => {
    const cell = make("span", { class: "name" }, swatch(arm, old));
    const badge = make("span"); badge.innerHTML = arm.badge; // our own drawing, made in Python from the variant's definition
    cell.append(badge, make("span", {}, ...rich(arm.label + suffix)));
    return cell;
  };
  const last = (list) => { for (let i = list.length - 1; i >= 0; i--) if (Number.isFinite(list[i])) return list[i]; return NaN; };
  const number = (v) => (Number.isFinite(v) ? v.toFixed(3) : "–");

  const words = () => {
    const status = model.get("status"), can = new Set(model.get("can"));
    root.dataset.status = status;
    root.dataset.tone = BAD.has(status) ? "bad" : "";
    word.textContent = WORDS[status] ?? status;
    message.replaceChildren(...rich(model.get("message")));
    const running = can.has("pause");
    primary.dataset.command = running ? "pause" : "play";
    primary.replaceChildren(icon(running ? "pause" : "play"), make("span", {}, running ? "Pause" : model.get("primary")));
    for (const b of buttons) b.disabled = !can.has(b.dataset.command);
    finding.replaceChildren(...rich(model.get("finding")));
  };
  const legend = () => {
    const rows = model.get("arms").map((arm, a) => {
      const row = make("tr", {}, make("td", {}, name(arm, false)), make("td", { class: "n" }), make("td", { class: "n" }));
      row.dataset.arm = a;
      return row;
    });
    for (const run of model.get("pinned")) run.arms.forEach((arm, a) => {
      const drop = make("button", { type: "button", "aria-label": `Remove pinned run ${run.number}`, onclick: () => ask("unpin", run.number) }, "remove");
      const cell = make("td", {}, name(arm, true, ` · run ${run.number}`));
      if (a === 0) cell.firstChild.append(drop);
      rows.push(make("tr", { class: "old" }, cell, make("td", { class: "n" }, number(last(arm.curve[1]))), make("td", { class: "n" }, number(arm.validation.at(-1)?.[1]))));
    });
    body.replaceChildren(...rows);
    numbers();
  };
  const numbers = () => {
    for (const row of body.querySelectorAll("tr[data-arm]")) {
      const a = +row.dataset.arm;
      row.children[1].textContent = number(last(curves.arms[a].mean));
      row.children[2].textContent = number(curves.validation.filter((p) => p[0] === a).at(-1)?.[2]);
    }
    const total = model.get("total"), parts = total ? [`${reached} / ${total} steps`] : [];
    if (rate && model.get("status") === "running") parts.push(`${rate < 10 ? rate.toFixed(1) : Math.round(rate)} steps/s`, `${clock(left)} left`);
    meter.textContent = parts.join(" · ");
    bar.style.width = total ? `${(100 * reached) / total}%` : "0";
  };

  // ---- the drawing
  let place = null; // maps steps to pixels and back, for the pointer
  const draw = () => {
    frame = 0;
    const width = canvas.clientWidth, height = Math.round(Math.min(340, Math.max(210, width * 0.45))), ratio = window.devicePixelRatio || 1;
    if (!width) return;
    canvas.style.height = `${height}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    }
    if (dark !== isDark()) { dark = !dark; legend(); }
    const c = canvas.getContext("2d"), ink = getComputedStyle(root).color, arms = model.get("arms"), pinned = model.get("pinned");
    c.setTransform(ratio, 0, 0, ratio, 0, 0); c.clearRect(0, 0, width, height);
    c.font = `12px ${getComputedStyle(root).fontFamily}`;

    const total = Math.max(model.get("total"), 1, ...pinned.flatMap((run) => run.arms.map((arm) => arm.curve[0].at(-1) ?? 0)));
    const end = zoomed ? Math.max(reached, 2) : total, start = zoomed ? end * 0.5 : 0;
    let low = Infinity, high = -Infinity;
    const see = (step, ...values) => { if (step >= start && step <= end) for (const v of values) if (v != null && Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); } };
    curves.steps.forEach((s, i) => curves.arms.forEach((arm) => see(s, arm.low[i], arm.high[i])));
    curves.validation.forEach((p) => see(p[1], p[3], p[4]));
    for (const run of pinned) for (const arm of run.arms) {
      arm.curve[0].forEach((s, i) => see(s, arm.curve[2][i], arm.curve[3][i]));
      arm.validation.forEach((p) => see(p[0], p[2], p[3]));
    }
    if (!(high > low)) { const middle = Number.isFinite(low) ? low : 3; low = middle - 1; high = middle + 1; }
    const pad = (high - low) * 0.06; low -= pad; high += pad;
    const [yTicks, digits] = nice(low, high, 5), [xTicks] = nice(start, end, width < 480 ? 4 : 8);
    const L = 14 + Math.max(...yTicks.map((v) => c.measureText(v.toFixed(digits)).width)), R = 10, T = 22, B = 34;
    const x = (s) => L + ((s - start) / (end - start)) * (width - L - R), y = (v) => T + ((high - v) / (high - low)) * (height - T - B);
    place = { x, step: (px) => start + ((px - L) / (width - L - R)) * (end - start), L, R, width };

    c.strokeStyle = ink; c.fillStyle = ink; c.lineWidth = 1;
    const empty = !curves.steps.length && !pinned.length;
    for (const v of empty ? [] : yTicks) {
      c.globalAlpha = 0.13; c.beginPath(); c.moveTo(L, Math.round(y(v)) + 0.5); c.lineTo(width - R, Math.round(y(v)) + 0.5); c.stroke();
      c.globalAlpha = 0.72; c.textAlign = "right"; c.textBaseline = "middle"; c.fillText(v.toFixed(digits), L - 6, y(v));
    }
    c.textAlign = "center"; c.textBaseline = "top";
    for (const s of xTicks) c.fillText(String(Math.round(s)), Math.min(x(s), width - R - 10), height - B + 7);
    c.textAlign = "left"; c.fillText(`loss, ${model.get("unit")}`, 0, 2);
    c.textAlign = "right"; c.fillText("step", width - R, height - 13);
    if (empty) { c.textAlign = "center"; c.globalAlpha = 0.6; c.fillText("The curves grow here. Press Train.", (L + width - R) / 2, height / 2 - 8); }

    c.save(); c.beginPath(); c.rect(L, T - 6, width - L - R + 6, height - T - B + 12); c.clip();
    const line = (arm, steps, mean, lo, hi, alpha, thickness) => {
      if (model.get("seeds") > 1 || lo.some((v, i) => v !== mean[i])) {
        stroke(c, arm, alpha * 0.18, 0); c.beginPath();
        const seen = steps.map((_, i) => i).filter((i) => Number.isFinite(lo[i] ?? NaN));
        seen.forEach((i, n) => c[n ? "lineTo" : "moveTo"](x(steps[i]), y(hi[i])));
        for (const i of seen.reverse()) c.lineTo(x(steps[i]), y(lo[i]));
        c.fill();
      }
      stroke(c, arm, alpha, thickness); c.beginPath();
      let pen = false, px = -9;
      steps.forEach((s, i) => {
        if (!Number.isFinite(mean[i] ?? NaN)) { pen = false; return; }
        const at = x(s);
        if (pen && at - px < 0.4 && i < steps.length - 1) return; // no more than a few points a pixel
        c[pen ? "lineTo" : "moveTo"](at, y(mean[i])); pen = true; px = at;
      });
      c.stroke();
    };
    const dots = (arm, points, alpha, radius) => {
      stroke(c, arm, alpha, 1.5); c.setLineDash([]);
      for (const [s, mean, lo, hi] of points) {
        if (hi > lo) { c.beginPath(); c.moveTo(x(s), y(lo)); c.lineTo(x(s), y(hi)); c.stroke(); }
        c.beginPath(); c.arc(x(s), y(mean), radius, 0, 7); c[arm.dash === "solid" ? "fill" : "stroke"](); // a ring where the line is broken
      }
    };
    for (const run of pinned) for (const arm of run.arms) { line(arm, ...arm.curve, 0.45, 1.2); dots(arm, arm.validation, 0.45, 2); }
    arms.forEach((arm, a) => line(arm, curves.steps, curves.arms[a].mean, curves.arms[a].low, curves.arms[a].high, 0.95, 1.9));
    arms.forEach((arm, a) => dots(arm, curves.validation.filter((p) => p[0] === a).map((p) => p.slice(1)), 1, 3.2));
    for (const [a, step] of curves.ended) {
      const until = curves.steps.findLastIndex((s) => s <= step), value = last(curves.arms[a].mean.slice(0, until + 1));
      if (!Number.isFinite(value)) continue;
      stroke(c, arms[a], 1, 3); c.setLineDash([]); const px = x(step), py = y(value);
      c.beginPath(); c.moveTo(px - 6, py - 6); c.lineTo(px + 6, py + 6); c.moveTo(px + 6, py - 6); c.lineTo(px - 6, py + 6); c.stroke();
    }
    if (cursor !== null && curves.steps.length) {
      c.globalAlpha = 0.5; c.strokeStyle = ink; c.lineWidth = 1; c.setLineDash([3, 3]);
      c.beginPath(); c.moveTo(x(curves.steps[cursor]), T); c.lineTo(x(curves.steps[cursor]), height - B); c.stroke();
    }
    c.restore(); c.globalAlpha = 1; c.setLineDash([]);
    describe();
  };
  const later = () => { if (!frame) frame = requestAnimationFrame(draw); };
  const describe = () => {
    const names = model.get("arms").map((arm, a) => `${arm.label} ${number(last(curves.arms[a].mean))}`).join(", ");
    canvas.setAttribute("aria-label", curves.steps.length
      ? `Loss curves, ${model.get("unit")}, after ${reached} of ${model.get("total")} steps: ${names}. ${model.get("finding")} Arrow keys read the values.`
      : "Loss curves, empty so far.");
  };

  // ---- reading values: pointer and keyboard
  const read = (index, aloud) => {
    cursor = index;
    if (cursor === null || !curves.steps.length) { cursor = null; tip.hidden = true; later(); return; }
    const step = curves.steps[cursor], lines = [`step ${step}`], brief = [`step ${step}`];
    model.get("arms").forEach((arm, a) => {
      const m = curves.arms[a], band = m.high[cursor] - m.low[cursor] > 5e-4 ? ` (${number(m.low[cursor])} to ${number(m.high[cursor])})` : "";
      const near = curves.validation.filter((p) => p[0] === a && p[1] <= step).at(-1);
      brief.push(`${arm.label}: ${number(m.mean[cursor])}${near ? ` · validation ${number(near[2])}` : ""}`);
      lines.push(`${arm.label}: ${number(m.mean[cursor])}${band}${near ? `, validation ${number(near[2])} at ${near[1]}` : ""}`);
    });
    tip.replaceChildren(...brief.map((text) => make("div", {}, ...rich(text))));
    tip.hidden = false;
    const at = place.x(step), wide = tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(place.width - wide, at + 12 + wide > place.width ? at - wide - 12 : at + 12))}px`;
    if (aloud) spoken.textContent = lines.join(". ");
    later();
  };
  const nearest = (step) => curves.steps.reduce((best, s, i) => (Math.abs(s - step) < Math.abs(curves.steps[best] - step) ? i : best), 0);
  canvas.addEventListener("pointermove", (e) => place && curves.steps.length && read(nearest(place.step(e.clientX - canvas.getBoundingClientRect().left)), false));
  canvas.addEventListener("pointerleave", () => read(null, false));
  canvas.addEventListener("blur", () => read(null, false));
  canvas.addEventListener("keydown", (e) => {
    const count = curves.steps.length, jump = Math.max(1, Math.round(count / (e.shiftKey ? 10 : 50))), at = cursor ?? count - 1;
    const to = { ArrowLeft: at - jump, ArrowRight: at + jump, Home: 0, End: count - 1, Escape: null }[e.key];
    if (to === undefined || !count) return;
    e.preventDefault(); e.stopPropagation();
    read(to === null ? null : Math.max(0, Math.min(count - 1, to)), true);
  });

  // ---- what Python says
  let fresh = true;
  const again = () => { if (fresh) return; fresh = true; queueMicrotask(() => { fresh = false; load(); cursor = null; tip.hidden = true; legend(); words(); later(); }); };
  const onTick = (content, buffers) => {
    if (content?.type !== "tick" || content.epoch !== model.get("epoch")) return;
    append(floats(buffers?.[0]), 1 + 3 * curves.arms.length);
    curves.validation.push(...content.validation);
    curves.ended = content.ended ?? curves.ended;
    reached = content.step; rate = content.rate; left = content.left;
    numbers(); later();
  };
  const onWords = () => { words(); numbers(); later(); };
  const onRun = () => {
    try { model.get("run_id") ? sessionStorage.setItem(slot, model.get("run_id")) : sessionStorage.removeItem(slot); } catch { /* private mode */ }
  };
  const onMoment = () => { model.set("heard", model.get("moment")); model.save_changes(); };
  const onPins = () => { legend(); later(); };
  const slot = `qkvlab:run:${model.get("key")}`, listeners = { "msg:custom": onTick, "change:epoch": again, "change:pinned": onPins, "change:run_id": onRun, "change:moment": onMoment };
  for (const trait of ["status", "message", "can", "primary", "finding"]) listeners[`change:${trait}`] = onWords;
  for (const [event, f] of Object.entries(listeners)) model.on(event, f);
  const observer = new ResizeObserver(later); observer.observe(canvas);
  const scheme = matchMedia("(prefers-color-scheme: dark)"), recolour = () => setTimeout(later, 60);
  scheme.addEventListener("change", recolour);
  const theme = new MutationObserver(recolour); theme.observe(document.body, { attributeFilter: ["data-jp-theme-light"] }); // JupyterLab's

  load(); legend(); words(); fresh = false; later();
  if (model.get("moment") !== model.get("heard")) onMoment();
  let saved = null; // the run this tab trained before it was reloaded
  try { saved = model.get("key") && sessionStorage.getItem(slot); } catch { /* private mode */ }
  if (saved && !model.get("run_id")) ask("hello", saved);

  return () => {
    for (const [event, f] of Object.entries(listeners)) model.off(event, f);
    observer.disconnect(); theme.disconnect(); scheme.removeEventListener("change", recolour); cancelAnimationFrame(frame);
  };
}

export default { render };
