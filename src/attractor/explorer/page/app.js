// The page: one state, the controls that change it, and the loop that draws it.
"use strict";

const $ = (id) => document.getElementById(id);
const DATA = JSON.parse($("data").textContent), SERVER = JSON.parse($("server").textContent);
setTableau(DATA.tableau);
const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
const FRAMES = 400, WHOLE = 14; // frames of a run, and seconds that it takes at speed 1

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const state = {
  system: null, preset: null, head: 0, run: null, next: null, at: 0, playing: false, speed: 1, clock: "log", trails: true, arcs: true, rescaled: false, gaussian: false,
  selected: -1, hover: -1, drawing: false, theory: [], open: null, live: null,
};
const scene = new Scene($("scene"), $("globe"));
const startWorker = () => { // a worker begins with the same scripts as the page
  const shared = document.scripts[document.scripts.length - 1].textContent.slice(0, DATA.shared);
  const url = URL.createObjectURL(new Blob([shared, DATA.worker], { type: "text/javascript" })), worker = new Worker(url);
  worker.postMessage({ tableau: DATA.tableau });
  return worker;
};
const worker = startWorker();
let scanner = null, runs = 0;

/* ---------------------------------------------------------------- running */

// start the computation of the present system; what is shown changes when the new run has something to show
function recompute({ keepTime = true, from = null } = {}) {
  const { system } = state, id = ++runs;
  if (!keepTime) state.at = 0;
  let start;
  try {
    start = new Space(system.space, system.dim).enter(drawStart(system.start, system.dim), tokenCount(system));
  } catch (error) {
    return notify(error.message);
  }
  const n = tokenCount(system), run = {
    id, n, d: system.dim, system: structuredClone(system), start, times: saveTimes(system.until, FRAMES, state.clock), frames: [], curves: [], events: [], outcome: null,
    masses: system.masses ? Float64Array.from(system.masses) : new Float64Array(n).fill(1 / n), began: performance.now(), wanted: from === null ? state.at : from,
  };
  state.next = run;
  worker.postMessage({ id, kind: "run", system, count: FRAMES, clock: state.clock });
  state.theory = predictFates(system, start, run.masses);
  showTheory();
  saveAddress();
  document.dispatchEvent(new Event("system")); // the served page asks for all theorems
}

worker.onmessage = ({ data }) => {
  const run = state.next && state.next.id === data.id ? state.next : state.run && state.run.id === data.id ? state.run : null;
  if (!run) return;
  if (data.kind === "error") { state.next = null; return notify(`This system cannot be computed: ${data.message}`); }
  if (data.kind === "start") { run.times = data.times; run.wanted = Math.min(run.wanted, data.times.length - 1); return; }
  for (const frame of data.frames) addFrame(run, frame);
  run.events.push(...data.events);
  Object.assign(run, { t: data.t, steps: data.steps, evaluations: data.evaluations, left: data.tokens });
  if (data.outcome) run.outcome = data.outcome;
  if (run === state.next && (run.frames.length > run.wanted || run.outcome || performance.now() - run.began > 250) && run.frames.length) showRun(run);
  else if (run === state.run) scene.extend(run.frames.length);
  if (data.outcome) { showObserved(); drawMarks(); }
};

function addFrame(run, frame) {
  frame.drawn = drawnPoints(run, frame);
  let reach = 0;
  const d = run.d, sizes = [];
  for (let i = 0; i < run.n; i++) sizes.push(Math.hypot(...frame.drawn.subarray(i * d, i * d + Math.min(d, 3))));
  sizes.sort((a, b) => a - b);
  reach = Math.max(sizes[Math.floor(0.97 * (sizes.length - 1))], 0.4 * sizes[sizes.length - 1]);
  const first = run.frames.length ? run.frames[0].reach : reach;
  frame.reach = Math.max(reach, 0.2 * first); // shrinking must be seen
  if (!frame.sizes && run.frames.length) frame.sizes = run.frames[run.frames.length - 1].sizes;
  run.frames.push(frame);
  run.curves.push(frame.curve);
}

// points as they are drawn: in flat space they may be divided by the growth e^(tV)
function drawnPoints(run, frame) {
  if (!state.rescaled || run.system.space !== "euclidean") return frame.points;
  const d = run.d, total = new Float64Array(d * d), sign = run.system.reverse ? -1 : 1;
  for (const head of run.system.heads) flatMatrix(head.value).forEach((v, k) => { total[k] -= sign * v * frame.t; });
  const shrink = matrixExponential(total, d), out = new Float64Array(frame.points.length);
  for (let i = 0; i < run.n; i++) for (let a = 0; a < d; a++) for (let b = 0; b < d; b++) out[i * d + a] += shrink[a * d + b] * frame.points[i * d + b];
  return out;
}

function showRun(run) {
  const first = !state.run, before = state.run;
  state.run = run;
  state.next = null;
  if (!before || before.d !== run.d) scene.camera.reset(run.d);
  const space = new Space(run.system.space, run.d);
  scene.begin(run, space.name, space.root || null);
  paintTokens();
  scene.extend(run.frames.length);
  state.at = Math.min(run.wanted, run.times.length - 1);
  if (state.selected >= run.n) select(-1);
  run.law = new Law(run.system);
  run.closure = null;
  $("time").max = run.times.length - 1;
  showCaption();
  drawMarks();
  showObserved();
  updatePanels();
  if (first) document.documentElement.dataset.ready = "true";
}

function paintTokens() {
  const { run } = state;
  if (run) scene.paint(tokenColours(run.start, run.n, run.d, Boolean(run.system.mask || run.system.positions), isDark()));
}

const timeAt = (run, at) => {
  const k = Math.min(Math.max(Math.floor(at), 0), run.times.length - 1), m = Math.min(k + 1, run.times.length - 1);
  return run.times[k] + (at - k) * (run.times[m] - run.times[k]);
};

function frameAtTime(run, t) {
  let low = 0, high = run.times.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (run.times[middle] <= t) low = middle; else high = middle; }
  return low + (run.times[high] > run.times[low] ? Math.min(1, Math.max(0, (t - run.times[low]) / (run.times[high] - run.times[low]))) : 0);
}

// theorems of the served page replace those of the static one, until the system changes
function takeTheorems(list) {
  state.theory = list;
  showTheory();
}

// show a run that was computed elsewhere: frames {t, points: flat Float64Array}, optional words and curves
function playFrames({ system, times, frames, events = [], outcome = null, words = null }) {
  const d = system.dim, n = frames[0].points.length / d, masses = system.masses ? Float64Array.from(system.masses) : new Float64Array(n).fill(1 / n), space = new Space(system.space, d), law = new Law(system);
  const run = { id: ++runs, n, d, system, start: frames[0].points, times, frames: [], curves: [], events, outcome, words, masses, began: performance.now(), wanted: 0 };
  for (const frame of frames) {
    const full = n <= HEAVY || run.frames.length % Math.ceil((n / HEAVY) ** 2) === 0 || run.frames.length === frames.length - 1, curve = observe(law, space, frame.points, masses, n, d, full && n <= 4096);
    addFrame(run, { ...frame, sizes: frame.sizes || null, curve });
  }
  showRun(run);
}

/* ---------------------------------------------------------------- drawing */

let dirty = true, lastTick = 0, lastPanels = 0, drawnAt = -1;
const invalidate = () => { dirty = true; };

function tick(now) {
  requestAnimationFrame(tick);
  const { run } = state, passed = Math.min(0.1, (now - lastTick) / 1000);
  lastTick = now;
  if (!run) return;
  if (state.playing) {
    const end = run.times.length - 1, available = run.outcome ? run.frames.length - 1 : run.frames.length - 1;
    state.at = Math.min(state.at + (passed * state.speed * end) / WHOLE, available);
    if (run.outcome && state.at >= run.frames.length - 1) setPlaying(false);
    dirty = true;
    if (!state.moved && state.at > 0) state.moved = now; // milliseconds from the request of the page to the first motion
  }
  if (!dirty && drawnAt === state.at) return;
  dirty = false;
  drawnAt = state.at;
  drawScene();
  if (now - lastPanels > 90 || !state.playing) { lastPanels = now; updatePanels(); }
}

function resizeScene() {
  const canvas = $("scene"), ratio = Math.min(2, window.devicePixelRatio || 1), box = $("stage").getBoundingClientRect();
  canvas.ratio = ratio;
  canvas.width = Math.max(1, Math.round(box.width * ratio));
  canvas.height = Math.max(1, Math.round(box.height * ratio));
  invalidate();
}

const view = () => ({ at: state.at, trails: state.trails ? 30 : 0, selected: state.selected >= 0 ? state.selected : state.hover, arcs: state.arcs ? attentionArcs() : [], lines: gaussianLines() });

function drawScene() {
  if (scene.count) scene.draw(view());
  const { run } = state, t = timeAt(run, state.at);
  $("now").textContent = `t = ${formatNumber(t)}`;
  $("time").value = state.at;
  $("time").setAttribute("aria-valuetext", `t = ${formatNumber(t)}, ${curveValue(run, "clusters", state.at)} clusters`);
  drawMarks();
  showLabels();
}

// arcs from the selected token to those that it attends to most, as wide as its weights
function attentionArcs() {
  const token = state.selected >= 0 ? state.selected : state.hover, { run } = state;
  if (token < 0 || !run || token >= run.n || !run.law) return [];
  const frame = run.frames[Math.min(Math.round(state.at), run.frames.length - 1)], n = run.n, law = run.law, weights = new Float64Array(n);
  law.reserve(n);
  for (const head of law.heads) {
    law.project(head, frame.points, n);
    const total = law.weigh(head, token, n, run.masses), end = law.causal ? token + 1 : n;
    for (let j = law.first(token); j < end; j++) weights[j] += law.scores[j] / total / law.heads.length;
  }
  const places = scene.placesAt(state.at), from = places.subarray(3 * token, 3 * token + 3), order = Array.from(weights.keys()).filter((j) => j !== token && weights[j] > 1e-4).sort((a, b) => weights[b] - weights[a]).slice(0, 60);
  const top = order.length ? weights[order[0]] : 1, curved = scene.kind !== "euclidean", ink = scene.looks.arc;
  return order.map((j) => {
    const to = places.subarray(3 * j, 3 * j + 3), share = weights[j] / top, points = [];
    for (let k = 0; k <= 14; k++) {
      const w = k / 14, p = [0, 1, 2].map((c) => from[c] + w * (to[c] - from[c]));
      if (curved) { // along the surface in space, through the disc on the circle
        const length = Math.hypot(...p) || 1, lift = scene.solid ? 1.015 : 0.55 + 0.45 * (2 * w - 1) ** 2, size = Math.hypot(...from) + w * (Math.hypot(...to) - Math.hypot(...from));
        const scale = scene.solid ? (lift * size) / length : (lift * size) / Math.max(length, 1e-9) * Math.min(1, length / 0.2 + 0.0) ;
        points.push(p.map((v) => v * scale));
      } else points.push(p);
    }
    return { points, colour: [...ink, 0.12 + 0.75 * share], width: 0.6 + 4.2 * share };
  });
}

function showLabels() {
  const overlay = $("overlay"), { run } = state, labels = [];
  if (run && scene.count) {
    const p = scene.project({ at: state.at }), ratio = $("scene").ratio || 1, places = scene.placesAt(state.at), names = run.words;
    const add = (i, text) => { const [x, y, z] = scene.toPixels(places.subarray(3 * i, 3 * i + 3), p); labels.push({ x: x / ratio, y: y / ratio, text, z }); };
    if (names) names.forEach((word, i) => add(i, word));
    else if (run.system.mask && run.n > 1) add(0, "1");
    for (const i of run.system.pinned || []) if (i < run.n && i !== state.selected) add(i, "pinned");
  }
  while (overlay.children.length > labels.length) overlay.lastChild.remove();
  labels.forEach(({ x, y, text, z }, k) => {
    const span = overlay.children[k] || overlay.appendChild(make("span"));
    if (span.textContent !== text) span.textContent = text;
    span.style.left = `${x}px`;
    span.style.top = `${y}px`;
    span.style.opacity = scene.solid && z < 0 ? "0.35" : "1";
  });
}

function drawMarks() {
  const { run } = state;
  if (!run) return;
  const { context, width, height } = fit($("marks")), pad = 8, total = run.times.length - 1, x = (k) => pad + ((width - 2 * pad) * k) / total;
  context.fillStyle = css("--rule");
  context.fillRect(pad, height - 3, width - 2 * pad, 2);
  context.fillStyle = css("--accent");
  context.fillRect(pad, height - 3, ((width - 2 * pad) * Math.min(run.frames.length - 1, total)) / total, 2);
  context.fillStyle = css("--near");
  for (const event of run.events) { const tall = Math.min(height - 3, 3 + 2.2 * Math.log2(1 + event.size)); context.fillRect(x(frameAtTime(run, event.time)) - 0.5, height - 3 - tall, 1.5, tall); }
}

/* ---------------------------------------------------------------- text about the run */

const SPACES = { circle: "circle", sphere: "sphere", ellipse: "ellipse", ellipsoid: "ellipsoid", plane: "plane", space: "space" };
const spaceName = (system) => (system.space === "euclidean" ? (system.dim === 2 ? "plane" : "space") : system.space === "sphere" ? (system.dim === 2 ? "circle" : "sphere") : system.dim === 2 ? "ellipse" : "ellipsoid");
const short = (value) => formatNumber(value);

function showCaption() {
  const { system, n } = state.run, mask = system.mask === "causal" ? "causal " : system.mask ? `window ${system.mask.window} ` : "";
  const noise = system.noise > 0 ? `, noise ${short(system.noise)}` : "", layers = system.layers ? `, layers of size ${short(system.layers)}` : "", heads = system.heads.length > 1 ? `, ${system.heads.length} heads` : "";
  const text = `${n} tokens on the ${SPACES[spaceName(system)] || "space"}`.replace("on the plane", "in the plane").replace("on the space", `in ${system.dim} dimensions`);
  $("caption").replaceChildren(make("b", { text }), ` · ${mask}${system.kernel} attention, β = ${short(system.beta)}${heads}${system.positions ? ", rotary positions" : ""}${noise}${layers}${system.reverse ? ", time reversed" : ""}${state.rescaled && system.space === "euclidean" ? " · divided by the growth e^(tV)" : ""}`);
  $("scene").setAttribute("aria-label", `${text}, ${mask}${system.kernel} attention, beta ${short(system.beta)}. Space plays, arrow keys move in time, brackets select a token.`);
}

let noticeTimer = 0;
function notify(text) {
  const notice = $("notice");
  notice.textContent = text;
  notice.classList.add("shown");
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => notice.classList.remove("shown"), 4200);
}

const FATES = { consensus: "consensus", metastable: "no merge for long", equilibrium: "equilibrium", bipartite: "two opposite camps", collapse: "all tokens tend to 0", divergence: "divergence", uniform: "spread out", order: "a cluster forms" };

function showTheory() {
  const box = $("theory"), { theory, system } = state, applying = theory.filter((theorem) => theorem.applies);
  const rated = applying.find((theorem) => theorem.fate === "consensus" && Number.isFinite(theorem.rate)) || applying[0];
  const fates = [...new Set(applying.filter((theorem) => theorem.fate !== "metastable").map((theorem) => FATES[theorem.fate]))], waits = applying.find((theorem) => theorem.fate === "metastable");
  const falls = (rate) => make("small", {}, "distances fall like e", make("sup", { text: rate === 1 ? "−t" : `−${number(rate)} t` }));
  const predicted = make("dd", { text: fates[0] || (waits ? FATES.metastable : "no theorem here decides") });
  if (rated && Number.isFinite(rated.rate) && rated.fate === "consensus") predicted.append(falls(rated.rate));
  if (waits) predicted.append(make("small", { text: `no merge before t = ${number(waits.time)}` }));
  const chipOf = theory.filter((theorem) => theorem.applies || theorem.hypotheses.filter((part) => !part.holds).length <= 1).map((theorem) => {
    const open = state.open === theorem.key;
    return make("button", {
      type: "button", class: `chip ${theorem.applies ? "yes" : "near"}`, "aria-expanded": String(open), "aria-controls": "detail", "data-theorem": theorem.key,
      text: `${theorem.applies ? "✓" : "△"} ${theorem.title}`, title: theorem.applies ? "applies to this system" : "one hypothesis fails",
      onclick: () => { state.open = open ? null : theorem.key; showTheory(); box.querySelector(`[data-theorem="${theorem.key}"]`)?.focus(); },
    });
  });
  const near = theory.filter((theorem) => !theorem.applies && theorem.hypotheses.filter((part) => !part.holds).length <= 1), chips = [
    ...(applying.length ? [make("p", { text: "These theorems apply:" }), ...chipOf.filter((chip) => chip.classList.contains("yes"))] : []),
    ...(near.length ? [make("p", { text: "One hypothesis is missing for:" }), ...chipOf.filter((chip) => chip.classList.contains("near"))] : []),
  ];
  const chosen = theory.find((theorem) => theorem.key === state.open), focused = document.activeElement?.dataset?.theorem;
  const detail = make("div", { id: "detail", hidden: !chosen });
  if (chosen) {
    const list = make("ul", {}, ...chosen.hypotheses.map((part) => make("li", { class: part.holds ? "ok" : "no" }, make("span", { text: part.holds ? "✓" : "✗", "aria-label": part.holds ? "holds" : "fails" }), make("span", { text: part.margin ? `${part.text} (${part.margin})` : part.text }))));
    detail.append(make("p", { text: chosen.applies ? chosen.say : "Does not apply: one hypothesis fails." }), list, DATA.documentation
      ? make("p", {}, make("a", { href: `${DATA.documentation}#${sectionOf(chosen.key)}`, target: "_blank", rel: "noopener", text: `Theorem ${chosen.key} in the documentation` }))
      : make("p", { class: "small", text: `Theorem ${chosen.key}` }));
  }
  const matrices = measureMatrices(system), first = matrices[Math.min(state.head, matrices.length - 1)], hemisphere = theory.find((theorem) => theorem.margin !== undefined), noise = theory.find((theorem) => theorem.critical !== undefined);
  const measures = [
    ...(hemisphere && Number.isFinite(hemisphere.margin) ? [["hemisphere margin at the start", hemisphere.margin]] : []), ["definiteness of W", first.interactionIndex * Math.sign(system.beta || 1)], ["of the metric W V⁻¹", first.metricIndex], ["largest real part of V", first.abscissa],
    ...(noise && Number.isFinite(noise.critical) ? [["noise / threshold", system.noise / noise.critical]] : []),
  ];
  box.replaceChildren(
    make("h2", { text: "Theory and what happens" }),
    make("dl", { class: "compare" }, make("div", {}, make("dt", { text: "Predicted" }), predicted), make("div", {}, make("dt", { text: "Seen in this run" }), make("dd", { id: "observed" }))),
    make("div", { class: "chips" }, ...(chips.length ? chips : [make("span", { class: "small", text: "No theorem of this page comes near this system." })])), detail,
    make("details", { class: "numbers", open: state.numbers }, make("summary", { text: "Numbers behind the theorems" }), make("p", { class: "measures" }, ...measures.map(([name, value]) => make("span", {}, `${name} `, make("b", { text: number(value, 3) }))))),
  );
  box.querySelector(".numbers").addEventListener("toggle", (event) => { state.numbers = event.target.open; });
  if (focused) box.querySelector(`[data-theorem="${focused}"]`)?.focus();
  showObserved();
}

function showObserved() {
  const { run } = state, place = $("observed");
  if (!run || !place || !run.frames.length) return;
  const { fate, rate } = judgeRun(run.system, run.frames, run.curves), over = Boolean(run.outcome);
  const text = run.outcome && run.outcome.name === "stalled" ? "stalled" : fate;
  place.replaceChildren(text || "…");
  if (over && Number.isFinite(rate)) return place.append(make("small", {}, "distances fall like e", make("sup", { text: number(rate) === "1" ? "−t" : `−${number(rate)} t` })));
  place.append(make("small", { text: !over ? `computing, t = ${short(run.t || 0)}` : run.outcome.name === "reached" ? `at t = ${short(run.system.until)}` : run.outcome.message }));
}

/* ---------------------------------------------------------------- panels */

function buildPanels() {
  const grid = make("div", { class: "grid" });
  for (const spec of CURVES) {
    const canvas = make("canvas", { "aria-hidden": "true" }), value = make("b", { text: "–" });
    const button = make("button", { type: "button", class: "curve", title: `${spec.help}. Click to go to that time.` }, make("span", { class: "name" }, make("span", { text: spec.title }), " ", value), canvas);
    button.addEventListener("click", (event) => {
      if (!state.run || event.detail === 0) return;
      const box = canvas.getBoundingClientRect(), share = (event.clientX - box.left - 4) / (box.width - 8);
      goTo(Math.min(1, Math.max(0, share)) * (state.run.times.length - 1));
    });
    button.addEventListener("keydown", (event) => { if (event.key === "ArrowLeft" || event.key === "ArrowRight") { event.preventDefault(); goTo(state.at + (event.key === "ArrowLeft" ? -8 : 8)); } });
    Object.assign(spec, { canvas, value, button });
    grid.append(button);
  }
  const figure = (id, text) => make("figure", {}, make("canvas", { id, role: "img", "aria-label": text, width: 10, height: 10 }), make("figcaption", { text }));
  $("panels").append(
    make("section", { class: "curves", "aria-label": "Curves" }, grid),
    make("section", { class: "matrices", "aria-label": "Matrices" }, make("h2", { text: "Who is alike, who attends to whom" }), make("div", { class: "pair" }, figure("gram", "Cosines of all pairs of tokens"), figure("attention", "Attention: rows are tokens that look, columns tokens that are seen"))),
    make("section", { class: "spectra", "aria-label": "Spectra" }, make("h2", { text: "Eigenvalues" }), make("div", { class: "pair" }, figure("spectrum-w", "Interaction W: positive attends to similar tokens"), figure("spectrum-v", "Value V: right of the axis attracts, off the axis turns"))),
    make("section", { class: "spectra", id: "gaussian-panel", "aria-label": "Gaussian", hidden: true }, make("h2", { text: "Shape of the cloud" }), make("div", { class: "pair" }, figure("disc", "Centre: round cloud. Rim: a line, in the direction drawn there. Blue: the exact Gaussian; amber: the tokens"), make("p", { id: "gaussian-text", class: "small" }))),
  );
}

function updatePanels() {
  const { run } = state;
  if (!run || !run.frames.length) return;
  const visible = (element) => { const box = element.getBoundingClientRect(); return box.bottom > -50 && box.top < innerHeight + 50; };
  for (const spec of CURVES) {
    const value = curveValue(run, spec.key, state.at);
    spec.value.textContent = spec.key === "clusters" ? String(value) : formatNumber(value);
    spec.button.hidden = !run.curves.some((curve) => Number.isFinite(curve[spec.key]));
    if (visible(spec.canvas)) drawCurve(spec.canvas, run, spec, state.at);
  }
  const frame = run.frames[Math.min(Math.round(state.at), run.frames.length - 1)];
  if (visible($("gram"))) drawMatrices($("gram"), $("attention"), frame.points, run.d, run.law, run.masses, matrixOrder(scene.placesAt(state.at), run.n, Boolean(run.system.mask || run.system.positions)), isDark());
  if (visible($("spectrum-w"))) {
    const matrices = measureMatrices(run.system);
    drawSpectrum($("spectrum-w"), matrices.map(({ interactionSpectrum }) => interactionSpectrum.map(([re, im]) => [re * Math.sign(run.system.beta || 1), im])), "W");
    drawSpectrum($("spectrum-v"), matrices.map(({ valueSpectrum }) => valueSpectrum), "V");
  }
  updateGaussian();
}

function hasGaussian(run) {
  return state.gaussian && run.system.space === "euclidean" && run.d === 2 && run.system.kernel === "softmax" && !run.system.mask && !run.system.positions && !(run.system.noise > 0) && !run.system.layers && run.system.heads.every((head) => !head.query);
}

function prepareGaussian(run) {
  if (run.closure) return;
  run.closure = gaussianClosure(run.system, covarianceOf(run.start, run.masses, run.n), run.times);
  run.clouds = [];
}

function updateGaussian() {
  const { run } = state, shown = hasGaussian(run);
  $("gaussian-panel").hidden = !shown;
  if (!shown) return;
  prepareGaussian(run);
  while (run.clouds.length < run.frames.length) run.clouds.push(covarianceOf(run.frames[run.clouds.length].points, run.masses, run.n));
  drawDisc($("disc"), run.closure, run.clouds, state.at, run.times.length);
  const now = run.closure[Math.min(Math.round(state.at), run.closure.length - 1)];
  $("gaussian-text").textContent = `${run.closure.blowUp ? `The Gaussian becomes infinite at t = ${number(run.closure.blowUp, 4)}.` : "The Gaussian exists for all times shown."} ${now ? `Now its variances are ${number(now[0])} and ${number(now[2])}.` : "It no longer exists at this time; the finite cloud goes on."}`;
}

function gaussianLines() {
  const { run } = state;
  if (!run || !hasGaussian(run) || state.rescaled) return [];
  prepareGaussian(run);
  const now = run.closure[Math.min(Math.round(state.at), run.closure.length - 1)];
  if (!now) return [];
  const [a, b, c, mx, my] = now, { values, vectors } = symmetricEigen([a, b, b, c], 2);
  return [1, 2].map((size) => ({
    points: Array.from({ length: 73 }, (_, k) => {
      const u = Math.cos((Math.PI * k) / 36) * size * Math.sqrt(Math.max(0, values[0])), v = Math.sin((Math.PI * k) / 36) * size * Math.sqrt(Math.max(0, values[1]));
      return [mx + vectors[0] * u + vectors[1] * v, my + vectors[2] * u + vectors[3] * v, 0];
    }),
    colour: [...scene.looks.arc, 0.95 / size], width: 2.6 / size + 0.4,
  }));
}

/* ---------------------------------------------------------------- time */

function setPlaying(on) {
  state.playing = on;
  $("play").firstChild.textContent = on ? "❚❚" : "▶";
  $("play").setAttribute("aria-label", on ? "Pause" : "Play");
  if (on && state.run && state.run.outcome && state.at >= state.run.frames.length - 1) state.at = 0;
  invalidate();
}

function goTo(at) {
  if (!state.run) return;
  state.at = Math.min(Math.max(0, at), state.run.frames.length - 1);
  setPlaying(false);
}

/* ---------------------------------------------------------------- presets, address */

function openState({ system, view: seen = {} }, preset = null, play = true) {
  const whole = completeSystem(system);
  Object.assign(state, { system: whole, preset, head: 0, clock: seen.clock || "log", rescaled: Boolean(seen.rescaled), gaussian: Boolean(seen.gaussian), open: null, drawing: false });
  $("clock").value = state.clock;
  select(-1);
  state.run = state.run && state.run.d === whole.dim ? state.run : null;
  for (const button of $("presets").children) button.setAttribute("aria-pressed", String(preset !== null && button.dataset.key === preset.key));
  showStory();
  buildControls();
  const at = Number.isFinite(seen.at) ? seen.at : 0;
  recompute({ keepTime: false, from: at });
  setPlaying(play && !calm.matches && at === 0);
}

function showStory() {
  const { preset } = state, box = $("story");
  if (!preset) return box.replaceChildren(make("h2", { text: "Your own system" }), make("p", { text: "Change anything below; the run is computed again at once. The address of the page holds the whole system: copy the link to keep or share it." }));
  box.replaceChildren(make("h2", { text: preset.title }), make("p", { text: preset.text }), make("p", { class: "ask" }, make("b", { text: "Try: " }), preset.ask), make("p", { class: "source", text: preset.source }));
}

let addressTimer = 0;
function saveAddress() {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(async () => {
    try { history.replaceState(null, "", await currentAddress()); } catch { /* a page from a file may not change its address */ }
  }, 350);
}

async function currentAddress() {
  const seen = {};
  if (state.clock !== "log") seen.clock = state.clock;
  for (const name of ["rescaled", "gaussian"]) if (state[name]) seen[name] = true;
  if (state.preset && JSON.stringify(completeSystem(state.preset.system)) === JSON.stringify(state.system)) return `#p=${state.preset.key}`;
  return encodeState({ system: shortSystem(state.system), ...(Object.keys(seen).length ? { view: seen } : {}) });
}

async function openAddress() {
  const hash = location.hash;
  try {
    if (hash.startsWith("#p=")) {
      const preset = DATA.presets.find(({ key }) => key === hash.slice(3));
      if (preset) { openState(preset, preset); return true; }
      notify(`There is no preset ${hash.slice(3)}.`);
      return false;
    }
    const found = hash.length > 3 ? await decodeState(hash) : null;
    if (!found) return false;
    openState(found);
    return true;
  } catch (error) {
    notify(`The address cannot be read: ${error.message}`);
    return false;
  }
}

function buildPresets() {
  for (const preset of DATA.presets) $("presets").append(make("button", { type: "button", "data-key": preset.key, "aria-pressed": "false", text: preset.title, onclick: () => openState(preset, preset) }));
}

/* ---------------------------------------------------------------- light and dark */

const isDark = () => document.documentElement.dataset.theme === "dark";
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  scene.looks = dark
    ? { ground: [0.039, 0.055, 0.078], shell: [0.09, 0.125, 0.175], lit: [0.17, 0.225, 0.3], line: [0.55, 0.66, 0.8], ink: [0.95, 0.97, 1], edge: [0.06, 0.08, 0.11], arc: [1, 0.8, 0.45], grid: 0.22, trail: 0.62 }
    : { ground: [0.957, 0.969, 0.984], shell: [0.84, 0.88, 0.93], lit: [1, 1, 1], line: [0.42, 0.5, 0.61], ink: [0.08, 0.1, 0.13], edge: [1, 1, 1], arc: [0.72, 0.3, 0.02], grid: 0.28, trail: 0.5 };
  paintTokens();
  invalidate();
}
