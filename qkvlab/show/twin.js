// Draws what a cell of a Jupyter twin shows (twin.py: CellView). It is loaded once, with plotly.js (Library).
// A view gets HTML in which an empty div stands for each widget (data-slot) and each figure (data-figure). When the
// HTML changes, what is on the page is changed into it, node by node: controls, figures and open hints stay as they are.

const library = (globalThis.qkvlabTwin ??= (() => {
  let give, plotly, line = Promise.resolve();
  const packed = new Promise((resolve) => { give = resolve; });
  const idle = () => new Promise((resolve) => { globalThis.requestIdleCallback ? requestIdleCallback(resolve, { timeout: 1500 }) : setTimeout(resolve); });
  const load = async () => {
    const stream = new Blob([await packed]).stream().pipeThrough(new DecompressionStream("gzip")), source = await new Response(stream).text();
    await idle(); // models that are being made time out while the page is busy
    // Plotly's is a classic script; here it must not meet a module loader of the page.
    return new Function("window", "self", "module", "exports", "define", `${source}; return window.Plotly;`)(globalThis, globalThis);
  };
  return {
    give,
    draw: (job) => { // one after the other, with room between them for the rest of the page
      line = line.then(async () => job(await (plotly ??= load()))).catch((problem) => console.error("qkvlab twin:", problem)).then(() => new Promise((resolve) => { setTimeout(resolve); }));
      return line;
    },
  };
})());

// The views of cells are core widgets, empty boxes with the class "qkv-cell": those are filled here. (Sixty anywidgets
// made at once do not all load within the two seconds that anywidget gives them on a busy machine.)
function initialize({ model }) {
  library.give(model.get("plotly"));
  const manager = model.widget_manager, adopted = new WeakSet();
  const adopt = () => {
    for (const el of document.getElementsByClassName("qkv-cell")) {
      const id = [...el.classList].find((name) => name.startsWith("qkv-id-"))?.slice(7);
      if (adopted.has(el) || !manager.has_model(id)) continue;
      adopted.add(el);
      manager.get_model(id).then(async (cell) => {
        const clear = show(cell, el);
        for (const view of await Promise.all(Object.values(cell.views))) if (view.el === el) view.once("remove", clear);
      }).catch((problem) => console.error("qkvlab twin:", problem));
    }
  };
  const seen = new MutationObserver(adopt);
  seen.observe(document.body, { childList: true, subtree: true });
  adopt();
  return () => seen.disconnect();
}

function render({ el }) {
  el.innerHTML = '<div class="qkv-twin"><p class="twin-note">This notebook reacts: move a control, or edit a cell and run it.</p></div>';
}

const key = (node) => node.nodeType === 1 && (node.dataset.slot ? `slot ${node.dataset.slot}` : node.dataset.figure ? `figure ${node.dataset.figure}` : node.classList.contains("tex") ? `tex ${node.dataset.tex}` : "");

function morph(old, wanted) {
  const kept = new Map();
  for (const child of old.childNodes) if (key(child)) kept.set(key(child), child);
  let at = old.firstChild;
  for (const next of [...wanted.childNodes]) {
    const name = key(next);
    if (name) {
      const same = kept.get(name);
      kept.delete(name);
      if (same && same === at) at = at.nextSibling;
      else old.insertBefore(same ?? next, at);
    } else if (at && !key(at) && at.nodeType === next.nodeType && at.nodeName === next.nodeName) {
      if (next.nodeType !== 1) { if (at.nodeValue !== next.nodeValue) at.nodeValue = next.nodeValue; }
      else {
        for (const { name: n } of [...at.attributes]) if (!next.hasAttribute(n) && n !== "open") at.removeAttribute(n);
        for (const { name: n, value } of next.attributes) if (at.getAttribute(n) !== value) at.setAttribute(n, value);
        morph(at, next);
      }
      at = at.nextSibling;
    } else old.insertBefore(next, at);
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

const tell = (view, ...types) => { for (const type of types) view.luminoWidget?.processMessage({ type, isConflatable: false, conflate: () => false }); };
// Told of its end as it was of its beginning: Lumino would look for it among what it attached itself.
const drop = (view) => { if (view) { tell(view, "before-detach", "after-detach"); view.remove(); } };

function show(model, el) {
  const root = document.createElement("div");
  root.className = "qkv-twin";
  el.replaceChildren(root);
  const views = new Map(), drawn = new Map(); // element -> view of a widget; element -> figure that stands there
  let alive = true;

  const fill = async (place) => {
    views.set(place, null);
    try {
      const child = await model.widget_manager.get_model(place.dataset.slot);
      const view = await model.widget_manager.create_view(child, {});
      if (!alive || !place.isConnected && !root.contains(place)) return view.remove();
      views.set(place, view);
      place.replaceChildren(view.luminoWidget?.node ?? view.el);
      tell(view, "before-attach", "after-attach");
      const name = child.get("description");
      if (name) for (const part of place.querySelectorAll("input, select, textarea, .noUi-handle")) part.setAttribute("aria-label", name);
    } catch (problem) {
      place.textContent = "This control needs the kernel that made it: run the notebook again.";
      console.warn("qkvlab twin:", problem);
    }
  };
  const plot = (place) => {
    const wanted = model.get("figures")[place.dataset.figure], figure = wanted?.figure;
    if (!figure || drawn.get(place) === figure || !place.offsetWidth) return;
    drawn.set(place, figure);
    library.draw((Plotly) => {
      if (drawn.get(place) !== figure) return undefined; // a newer one has come meanwhile
      const layout = { uirevision: "stay", autosize: true, ...figure.layout };
      if (place.closest(".lab-figure")) delete layout.height; // the page gives it, also on a narrow screen
      return Plotly.react(place, figure.data, layout, { ...wanted.config, responsive: false });
    });
  };
  const size = new ResizeObserver((entries) => { // also: scrolled back into the page, or unfolded
    for (const { target: place } of entries) {
      plot(place);
      if (place.offsetWidth && place._fullLayout && Math.abs(place.offsetWidth - place._fullLayout.width) > 1)
        library.draw((Plotly) => place.offsetWidth && place._fullLayout && Plotly.Plots.resize(place));
    }
  });
  const clear = (place) => { drawn.delete(place); size.unobserve(place); library.draw((Plotly) => Plotly.purge(place)); };
  const draw = () => {
    const wanted = document.createElement("div");
    wanted.innerHTML = model.get("html");
    for (const tex of wanted.querySelectorAll(".tex")) tex.dataset.tex = tex.textContent;
    for (const link of wanted.querySelectorAll("a[href$='.ipynb']")) link.target = "_blank"; // this page stays as it is
    morph(root, wanted);
    for (const [place, view] of views) if (!root.contains(place)) { views.delete(place); drop(view); }
    for (const place of [...drawn.keys()]) if (!root.contains(place)) clear(place);
    for (const place of root.querySelectorAll("[data-slot]")) if (!views.has(place)) fill(place);
    for (const place of root.querySelectorAll("[data-figure]")) { size.observe(place); plot(place); }
    const typesetter = model.widget_manager?._rendermime?.latexTypesetter;
    if (typesetter) for (const tex of root.querySelectorAll(".tex:not([data-set])")) { tex.dataset.set = ""; typesetter.typeset(tex); }
  };
  let waiting = false; // one redraw for all that changed in a message
  const later = () => { if (!waiting) { waiting = true; queueMicrotask(() => { waiting = false; if (alive) draw(); }); } };
  const busy = () => root.setAttribute("aria-busy", model.get("busy"));
  const changes = { "change:html": later, "change:figures": later, "change:busy": busy };
  for (const [event, f] of Object.entries(changes)) model.on(event, f);
  draw(); busy();
  return () => {
    alive = false;
    for (const [event, f] of Object.entries(changes)) model.off(event, f);
    for (const view of views.values()) drop(view);
    for (const place of [...drawn.keys()]) clear(place);
    size.disconnect();
  };
}

export default { initialize, render };
