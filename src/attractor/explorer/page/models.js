// Real models: the tokens of a text along depth, and the heads of a model; from the server, or from files of attractor trace and audit.
"use strict";

const shown = { model: null, layer: 0, view: "projected", hover: -1, playing: 0 };
const LABELS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"]; // Okabe and Ito

async function buildModels() {
  const { models } = await (await request("/api/models")).json(), open = models.filter((model) => model.available);
  const box = $("model");
  if (!models.length) return box.append(make("p", { class: "small", text: "No model is installed. Give attractor explore --model FOLDER, or see attractor fetch." }));
  const form = make("form", { class: "bar", id: "model-form" },
    make("b", { text: "Real models: " }), make("select", { id: "model-name", "aria-label": "Model" }, ...models.map((model) => make("option", { value: model.name, text: model.available ? model.title : `${model.title} (${model.reason})`, disabled: !model.available }))),
    make("input", { type: "text", id: "model-text", maxlength: 4000, value: "The bank raised its rates while the river ran past the old bank.", "aria-label": "Text that the model reads" }),
    make("button", { type: "submit", id: "model-read", text: "Read", disabled: !open.length }));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const button = $("model-read"), name = $("model-name").value, text = $("model-text").value;
    button.disabled = true;
    button.textContent = "Reading…";
    try {
      showModel({ ...(await (await request("/api/model", { name, text })).json()), text });
    } catch (error) {
      notify(error.message);
    } finally {
      button.disabled = false;
      button.textContent = "Read";
    }
  });
  box.append(form);
}

/* ---------------------------------------------------------------- tokens along depth */

function modelBox() {
  const old = $("model-views");
  if (old) old.remove();
  $("model").hidden = false;
  const box = make("div", { id: "model-views" });
  $("model").append(box);
  return box;
}

function showModel(model) {
  Object.assign(shown, { model, layer: 0, hover: -1 });
  clearInterval(shown.playing);
  const box = modelBox(), views = make("div", { class: "views" });
  box.append(views);
  if (model.projected) {
    const share = () => `${Math.round(100 * model.shares[shown.view])} % of the variance`;
    const canvas = make("canvas", { id: "model-tokens", role: "img", "aria-label": "Tokens of the text along depth" }), caption = make("figcaption", {});
    const slider = make("input", { type: "range", id: "model-layer", min: 0, max: model.layers, step: 0.02, value: 0, "aria-label": "Layer" });
    const update = () => {
      slider.setAttribute("aria-valuetext", `after ${Math.floor(shown.layer)} of ${model.layers} layers`);
      caption.textContent = `${model.title || model.name} after ${formatNumber(Math.floor(shown.layer))} of ${model.layers} layers: discs are tokens of the model (${shown.view === "projected" ? "first two principal directions" : "directions on the sphere, in their first principal directions"}, ${share()})${model.ideal ? "; rings are the same tokens moved by attention alone, without feed-forward" : ""}.`;
      drawModelTokens(canvas);
    };
    slider.addEventListener("input", () => { shown.layer = Number(slider.value); update(); });
    const play = make("button", { type: "button", text: "Play", onclick: () => {
      clearInterval(shown.playing);
      if (shown.layer >= model.layers) shown.layer = 0;
      shown.playing = setInterval(() => {
        shown.layer = Math.min(model.layers, shown.layer + (calm.matches ? 1 : 0.03));
        slider.value = shown.layer;
        update();
        if (shown.layer >= model.layers) clearInterval(shown.playing);
      }, calm.matches ? 900 : 33);
    } });
    const view = make("select", { "aria-label": "Picture", onchange: () => { shown.view = view.value; update(); } }, make("option", { value: "projected", text: "plane of principal directions" }), make("option", { value: "directions", text: "sphere of directions" }));
    view.value = shown.view;
    views.append(make("figure", {}, canvas, make("div", { class: "bar" }, play, slider, view), caption));
    new ResizeObserver(update).observe(canvas);
  } else if (model.curves) {
    const grid = make("div", { class: "depth" }), names = Object.keys(model.curves);
    for (const name of names) { const canvas = make("canvas", { role: "img", "aria-label": `${name} along depth` }); grid.append(make("figure", {}, canvas, make("figcaption", { text: name.replaceAll("_", " ") }))); new ResizeObserver(() => drawDepth(canvas, model.curves[name])).observe(canvas); }
    views.append(grid);
  }
  if (model.heads && model.heads.length) views.append(headsFigure(model));
  for (const note of model.notes || []) box.append(make("p", { class: "small", text: note }));
  box.scrollIntoView({ block: "nearest" });
}

const mixed = (frames, layer) => { const k = Math.min(Math.floor(layer), frames.length - 1), m = Math.min(k + 1, frames.length - 1), w = layer - k; return frames[k].map((point, i) => point.map((v, a) => v + w * (frames[m][i][a] - v))); };

function drawModelTokens(canvas) {
  const { model, layer, view } = shown, { context, width, height } = fit(canvas), sphere = view === "directions";
  const real = model[view], ideal = sphere ? model.ideal_directions : model.ideal, colours = tokenHues(model.words.length);
  let reach = 1;
  if (!sphere) { // the longest of this moment: streams grow by orders of magnitude along depth
    reach = 1e-9;
    for (const points of [mixed(real, layer), ...(ideal ? [mixed(ideal, layer)] : [])]) for (const point of points) reach = Math.max(reach, Math.abs(point[0]), Math.abs(point[1]));
  }
  const half = Math.min(width, height) / 2 - 26, at = ([x, y]) => [width / 2 + (half * x * (sphere ? 1 : width / height > 1 ? Math.min(width / height, 1.5) : 1)) / reach, height / 2 - (half * y) / reach];
  context.lineWidth = 1;
  if (sphere) { context.strokeStyle = css("--rule"); context.beginPath(); context.arc(width / 2, height / 2, half, 0, 7); context.stroke(); }
  const trail = (frames, k, dash) => {
    context.setLineDash(dash);
    context.beginPath();
    for (let s = Math.max(0, layer - 2); s <= layer + 1e-9; s += 0.25) { const [x, y] = at(mixed(frames, Math.min(s, layer))[k]); if (s === Math.max(0, layer - 2)) context.moveTo(x, y); else context.lineTo(x, y); }
    context.strokeStyle = colours[k];
    context.globalAlpha = 0.35;
    context.stroke();
    context.globalAlpha = 1;
    context.setLineDash([]);
  };
  const now = mixed(real, layer), other = ideal ? mixed(ideal, layer) : null;
  model.words.forEach((word, k) => {
    trail(real, k, []);
    if (other) {
      trail(ideal, k, [3, 3]);
      const [x, y] = at(other[k]);
      context.strokeStyle = colours[k];
      context.lineWidth = 1.6;
      context.beginPath();
      context.arc(x, y, 4.5, 0, 7);
      context.stroke();
      context.lineWidth = 1;
    }
    const [x, y] = at(now[k]);
    context.fillStyle = colours[k];
    context.beginPath();
    context.arc(x, y, 5, 0, 7);
    context.fill();
  });
  context.font = "12px system-ui, sans-serif";
  context.fillStyle = css("--ink");
  const taken = [];
  model.words.forEach((word, k) => { // labels that would cover another are left out
    const [x, y] = at(now[k]), size = context.measureText(word).width, left = x + 8 + size > width ? x - 8 - size : x + 8, box = [left, y - 8, left + size, y + 6];
    if (taken.some((b) => box[0] < b[2] && box[2] > b[0] && box[1] < b[3] && box[3] > b[1])) return;
    taken.push(box);
    context.fillText(word, left, y + 4);
  });
}

const tokenHues = (n) => Array.from({ length: n }, (_, k) => `hsl(${Math.round(20 + (300 * k) / Math.max(1, n - 1))} 65% ${isDark() ? 62 : 42}%)`);

function drawDepth(canvas, values) {
  const { context, width, height } = fit(canvas), known = values.filter(Number.isFinite), low = Math.min(...known), high = Math.max(...known), span = high - low || 1;
  context.beginPath();
  values.forEach((v, k) => { if (!Number.isFinite(v)) return; const x = 6 + ((width - 12) * k) / Math.max(1, values.length - 1), y = height - 6 - ((height - 12) * (v - low)) / span; if (k) context.lineTo(x, y); else context.moveTo(x, y); });
  context.strokeStyle = css("--accent");
  context.lineWidth = 2;
  context.stroke();
  context.fillStyle = css("--quiet");
  context.font = "11px system-ui, sans-serif";
  context.fillText(formatNumber(high), 4, 11);
  context.fillText(formatNumber(low), 4, height - 3);
}

/* ---------------------------------------------------------------- heads */

function headsFigure(model) {
  const heads = model.heads.filter((head) => Number.isFinite(head.definiteness) && Number.isFinite(head.abscissa)), names = [...new Set(heads.map((head) => head.label))];
  const canvas = make("canvas", { id: "model-heads", role: "img", "aria-label": `${heads.length} heads by definiteness of V'W and largest real part of V` }), text = make("figcaption", { id: "head-text" });
  const pick = make("select", { id: "head-pick", "aria-label": "Head" }, ...heads.map((head, k) => make("option", { value: k, text: `layer ${head.layer}, head ${head.head}` })));
  const most = heads.reduce((top, head) => Math.max(top, Math.abs(head.abscissa)), 1e-9), spot = (head, width, height) => [30 + ((width - 44) * (head.definiteness + 1)) / 2, height / 2 - 8 - ((height / 2 - 24) * Math.asinh((4 * head.abscissa) / most)) / Math.asinh(4)];
  const colourOf = (head) => LABELS[names.indexOf(head.label) % LABELS.length];
  const draw = () => {
    const { context, width, height } = fit(canvas);
    context.font = "11px system-ui, sans-serif";
    context.strokeStyle = css("--rule");
    context.beginPath();
    const [x0, y0] = spot({ definiteness: 0, abscissa: 0 }, width, height);
    context.moveTo(x0, 6); context.lineTo(x0, height - 26); context.moveTo(26, y0); context.lineTo(width - 8, y0);
    context.stroke();
    context.fillStyle = css("--quiet");
    context.fillText("definiteness of V'W →", width - 130, y0 - 5);
    context.fillText("largest real part of V ↑", x0 + 5, 14);
    names.forEach((name, k) => { context.fillStyle = LABELS[k % LABELS.length]; context.fillRect(8 + (k % 4) * (width / 4), height - 20 + 11 * Math.floor(k / 4), 7, 7); context.fillStyle = css("--quiet"); context.fillText(name.replaceAll("_", " "), 18 + (k % 4) * (width / 4), height - 13 + 11 * Math.floor(k / 4)); });
    heads.forEach((head, k) => {
      const [x, y] = spot(head, width, height);
      context.beginPath();
      context.arc(x, y, k === shown.hover ? 7 : 4.5, 0, 7);
      context.fillStyle = colourOf(head);
      context.globalAlpha = k === shown.hover ? 1 : 0.75;
      context.fill();
      context.globalAlpha = 1;
      if (k === shown.hover) { context.strokeStyle = css("--ink"); context.stroke(); drawInset(context, head, width); }
    });
  };
  const choose = (k) => {
    shown.hover = k;
    pick.value = String(k);
    const head = heads[k];
    text.textContent = `Layer ${head.layer}, head ${head.head}: ${head.label.replaceAll("_", " ")}${head.certificate ? ` (certified by ${head.certificate})` : ""}. Definiteness of V'W ${formatNumber(head.definiteness)}, largest real part of V ${formatNumber(head.abscissa)}. ${head.why || ""}`;
    draw();
  };
  const nearest = (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    let best = -1, least = 18;
    heads.forEach((head, k) => { const [a, b] = spot(head, box.width, box.height), distance = Math.hypot(a - x, b - y); if (distance < least) { least = distance; best = k; } });
    return best;
  };
  const simulate = async () => {
    if (!model.name || shown.hover < 0 || SERVER === null || !session.key) return;
    const head = heads[shown.hover];
    try {
      const { system, words, notes } = await (await request("/api/head", { name: model.name, text: model.text, layer: head.layer, head: head.head })).json();
      await showServed(system, { words, title: `${model.name}, layer ${head.layer}, head ${head.head}`, notes: ["The tokens that this head reads, moved by this head alone on the sphere.", ...notes] });
    } catch (error) {
      notify(error.message);
    }
  };
  canvas.addEventListener("pointermove", (event) => { const k = nearest(event); canvas.style.cursor = k < 0 ? "" : "pointer"; if (k >= 0 && k !== shown.hover) choose(k); });
  canvas.addEventListener("click", (event) => { const k = nearest(event); if (k >= 0) { choose(k); simulate(); } });
  pick.addEventListener("change", () => choose(Number(pick.value)));
  text.textContent = `${heads.length} heads: point at one for its spectrum${model.projected ? ", click to simulate it" : ""}.`;
  new ResizeObserver(draw).observe(canvas);
  const button = model.projected ? [make("button", { type: "button", id: "head-run", text: "Simulate this head", onclick: () => { if (shown.hover < 0) choose(Number(pick.value)); simulate(); } })] : [];
  return make("figure", {}, canvas, make("div", { class: "bar" }, pick, ...button), text);
}

// eigenvalues of the value of a head in the complex plane
function drawInset(context, head, width) {
  const values = head.spectrum?.value;
  if (!values || !values.length) return;
  const size = 86, left = width - size - 8, top = 8, most = values.reduce((m, [a, b]) => Math.max(m, Math.abs(a), Math.abs(b)), 1e-12);
  context.fillStyle = css("--card");
  context.strokeStyle = css("--rule");
  context.fillRect(left, top, size, size);
  context.strokeRect(left, top, size, size);
  context.beginPath();
  context.moveTo(left, top + size / 2); context.lineTo(left + size, top + size / 2); context.moveTo(left + size / 2, top); context.lineTo(left + size / 2, top + size);
  context.stroke();
  context.fillStyle = css("--accent");
  for (const [a, b] of values) { context.beginPath(); context.arc(left + size / 2 + ((size / 2 - 6) * a) / most, top + size / 2 - ((size / 2 - 6) * b) / most, 1.8, 0, 7); context.fill(); }
}

/* ---------------------------------------------------------------- files of attractor trace and attractor audit */

const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : NaN);

async function openModelFile(document, name) {
  const schema = String(document.schema || "");
  if (schema.startsWith("attractor.audit/")) {
    const model = (Array.isArray(document.models) ? document.models : [])[0] || {}, rows = Array.isArray(model.heads) ? model.heads : [];
    const heads = rows.map((row) => ({ layer: row.layer, head: row.head, label: String(row.label || "unknown"), certificate: row.certificate || null, why: row.why || "", definiteness: finite(row.reduced_metric_index), abscissa: finite(row.value_abscissa), spectrum: null }));
    if (!heads.some((head) => Number.isFinite(head.definiteness))) throw new Error("it holds no heads with their indices");
    showModel({ name: null, title: String(model.model || name), heads, notes: [`Heads of ${name}.`] });
  } else if (schema.startsWith("attractor.trace/")) {
    const curves = {}, given = document.curves || {};
    for (const [key, value] of Object.entries(given)) { const list = Array.isArray(value) ? value : value && Array.isArray(value.mean) ? value.mean : null; if (list && list.some(Number.isFinite)) curves[key] = list.map(finite); }
    if (!Object.keys(curves).length) throw new Error("it holds no curves along depth");
    showModel({ name: null, title: String(document.model?.name || name), curves, notes: [`Measurements of ${name} along depth.`] });
  } else return false;
  notify(`${name} opened.`);
  return true;
}
