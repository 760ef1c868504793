// The controls, the pointer and the keyboard: everything that changes the system.
"use strict";

/* ---------------------------------------------------------------- sliders */

const rounded = (value, digits = 3) => Number(value.toPrecision(digits));
const SCALES = {
  even: { to: (v) => v, from: (u) => rounded(u) },
  log: { to: (v) => Math.log10(v), from: (u) => rounded(10 ** u) },
  both: { to: (v) => Math.asinh(2 * v), from: (u) => rounded(Math.sinh(u) / 2) }, // even near zero, logarithmic far from it, with both signs
  zero: { to: (v) => (v > 0 ? Math.log10(v) : -4), from: (u) => (u <= -3.98 ? 0 : rounded(10 ** u)) }, // logarithmic, and zero at the left end
  whole: { to: (v) => Math.log(v), from: (u) => Math.round(Math.exp(u)) },
};

let controlCount = 0;
const shortest = (v) => (Math.abs(v) >= 1e5 ? v.toExponential().replace("+", "") : String(v));

// a slider with a number beside it; change(value) is called as it moves
function slider(label, { low, high, scale = "even", value, change, hint, scan, owner = "", step = "any" }) {
  const name = owner ? `${owner}: ${label}` : label;
  const id = `control-${++controlCount}`, { to, from } = SCALES[scale], a = to(low), b = to(high);
  const range = make("input", { type: "range", id, min: scale === "zero" ? -4 : a, max: b, step: scale === "even" && step !== "any" ? step : (b - (scale === "zero" ? -4 : a)) / 400, "aria-describedby": hint ? `${id}-hint` : undefined, "aria-label": owner ? name : undefined });
  const box = make("input", { type: "number", step: "any", "aria-label": `${name}, number` });
  const set = (v) => { range.value = to(Math.min(high, Math.max(scale === "zero" ? 0 : low, v))); box.value = shortest(v); range.setAttribute("aria-valuetext", String(v)); };
  set(value);
  range.addEventListener("input", () => { const v = from(Number(range.value)); box.value = shortest(v); range.setAttribute("aria-valuetext", String(v)); change(v); });
  box.addEventListener("change", () => { const v = Number(box.value); if (Number.isFinite(v) && v >= low && v <= Math.max(high, 1e300)) { set(v); change(v); } else set(value); });
  const row = make("div", { class: "control" }, make("label", { for: id, text: label }), range, box);
  if (scan) {
    const strip = make("canvas", { class: "strip", "aria-hidden": "true", title: "Outcome at each position of the slider" });
    row.append(strip);
    const begin = () => scanSlider(strip, scan, Array.from({ length: 25 }, (_, k) => from((scale === "zero" ? -4 : a) + ((b - (scale === "zero" ? -4 : a)) * (k + 0.5)) / 25)), row);
    row.addEventListener("pointerenter", begin);
    range.addEventListener("focus", begin);
  }
  if (hint) row.append(make("span", { class: "hint", id: `${id}-hint`, text: hint }));
  return row;
}

function choice(label, options, value, change, hint = "") {
  const group = make("div", { class: "choice wide", role: "radiogroup", "aria-label": label });
  for (const [key, text] of options) group.append(make("button", { type: "button", role: "radio", "aria-checked": String(key === value), tabindex: key === value ? 0 : -1, "data-value": key, text, onclick: () => change(key) }));
  group.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const index = options.findIndex(([key]) => key === value), [key] = options[(index + way + options.length) % options.length];
    change(key);
    requestAnimationFrame(() => document.querySelector(`[aria-label="${label}"] [data-value="${key}"]`)?.focus());
  });
  return make("div", { class: "control" }, make("span", { text: label }), group, hint ? make("span", { class: "hint", text: hint }) : "");
}

// what a choice means, in a line
const HINTS = {
  softmax: "weights of a token add up to one: others compete for its attention", exponential: "weights are not normalised: crowded places pull harder", l2: "closeness decides instead of the inner product",
  sigmoid: "every other token is judged alone, without competition", hardmax: "only the best match counts",
  full: "every token sees every other", causal: "a token sees itself and the tokens before it, as in a language model", window: "a token sees itself and the last few before it",
  none: "", rotary: "queries and keys turn with the place in the sequence (RoPE)", flow: "infinitely many thin layers: a flow of time", layers: "layer after layer, with normalization in between",
  circle: "", sphere: "layer normalization in three dimensions", ellipse: "", ellipsoid: "", plane: "without normalization tokens may run away or shrink to zero", space: "without normalization tokens may run away or shrink to zero",
};

/* ---------------------------------------------------------------- outcomes under a slider */

function scanSlider(strip, apply, values, row) {
  if (strip.dataset.key === JSON.stringify(state.system) || tokenCount(state.system) > 400) return;
  strip.dataset.key = JSON.stringify(state.system);
  if (!scanner) scanner = startWorker();
  const id = ++runs, cells = new Array(values.length).fill(null);
  const systems = values.map((value) => {
    const system = structuredClone(state.system);
    apply(system, value);
    system.rtol = 1e-6; system.atol = 1e-8;
    system.merge = canMerge(system) ? 1e-4 : 0;
    return system;
  });
  scanner.onmessage = ({ data }) => {
    if (data.id !== id || data.kind !== "cell") return;
    cells[data.index] = data;
    const { context, width, height } = fit(strip);
    cells.forEach((cell, k) => { if (cell) { context.fillStyle = outcomeColour(cell, state.system); context.fillRect((width * k) / cells.length, 0, width / cells.length + 0.5, height); } });
    row.title = `Outcome at t = ${formatNumber(state.system.until)} along the slider: ${state.system.space === "euclidean" ? "blue tokens shrink, grey they stay, orange they grow" : "blue one cluster, then green, yellow, orange and red for more"}`;
  };
  scanner.postMessage({ id, kind: "scan", systems });
}

function outcomeColour(cell, system) {
  if (cell.error) return "transparent";
  if (system.space === "euclidean") {
    const grown = Math.log10(Math.max(cell.growth, 1e-12));
    return grown < -0.7 ? "#2f7fd0" : grown > 1 ? "#e0701a" : "#9aa5b1";
  }
  const many = Math.log2(cell.clusters) / Math.log2(Math.max(8, Math.min(cell.n, 64)));
  return cell.clusters === 1 ? "#2f7fd0" : cssColour(wheelColour(0.42 - 0.4 * Math.min(1, many), 0.72, 0.15));
}

/* ---------------------------------------------------------------- changes */

// change the description, then compute again; the time that is shown stays, so one sees what had happened by now
function change(edit, { rebuild = false, keepTime = true, play = false } = {}) {
  const before = structuredClone(state.system);
  edit(state.system);
  try {
    const merge = canMerge(state.system) && before.merge ? before.merge : null;
    state.system = completeSystem({ ...state.system, merge });
  } catch (error) {
    state.system = before;
    notify(error.message);
    rebuild = true;
  }
  if (rebuild) buildControls();
  const t = keepTime && state.run ? timeAt(state.run, state.at) : 0;
  const times = saveTimes(state.system.until, FRAMES, state.clock);
  recompute({ keepTime, from: keepTime && state.run ? frameAtTime({ times }, t) : 0 });
  if (play && !state.playing && !calm.matches) setPlaying(true);
}

// points as they are now become the start of a new run
function startFromHere(edit = () => {}) {
  const { run, system } = state;
  if (!run) return;
  const k = Math.min(Math.round(state.at), run.frames.length - 1), d = run.d, points = Array.from({ length: run.n }, (_, i) => Array.from(run.frames[k].points.subarray(i * d, (i + 1) * d), (v) => Number(v.toFixed(6)) + 0));
  edit(points);
  system.start = { kind: "points", points };
}

function changeSpace(name) {
  const { system } = state, dim = { circle: 2, ellipse: 2, plane: 2, sphere: 3, ellipsoid: 3, space: 3 }[name], before = system.dim;
  change((s) => {
    s.dim = dim;
    s.space = name === "plane" || name === "space" ? "euclidean" : name === "circle" || name === "sphere" ? "sphere" : { ellipsoid: eye(dim).map((row, i) => row.map((v) => (i === 0 ? v * 0.36 : v))) };
    if (before !== dim) {
      const resize = (matrix) => eye(dim).map((row, i) => row.map((v, j) => (matrix[i] && matrix[i][j] !== undefined ? matrix[i][j] : v)));
      s.heads = s.heads.map((head) => ({ interaction: resize(head.interaction || eye(dim)), value: resize(head.value) }));
      if (s.start.kind === "points") s.start = { kind: "uniform", tokens: tokenCount(s), seed: 0 };
      if (dim % 2) s.positions = null;
      s.masses = s.masses && s.masses.length === tokenCount(s) ? s.masses : null;
    }
    if (s.space === "euclidean") s.until = Math.min(s.until, 10);
  }, { rebuild: true, keepTime: false, play: true });
}

// a matrix as eigenvectors E and eigenvalues of its symmetric part and a rotation: E diag(values) E' + turn J
function splitMatrix(rows) {
  const d = rows.length, flat = flatMatrix(rows), { values, vectors } = symmetricEigen(symmetricPart(flat, d), d), skew = flat.map((v, k) => (v - flat[(k % d) * d + Math.floor(k / d)]) / 2);
  // in the order of the axes that the eigenvectors are closest to
  const order = [];
  for (let a = 0; a < d; a++) { let best = -1; for (let k = 0; k < d; k++) if (!order.includes(k) && (best < 0 || Math.abs(vectors[a * d + k]) > Math.abs(vectors[a * d + best]) + 1e-12)) best = k; order.push(best); }
  const E = new Float64Array(d * d);
  order.forEach((k, column) => { for (let a = 0; a < d; a++) E[a * d + column] = vectors[a * d + k]; });
  const clean = (v) => Number(v.toFixed(6)) + 0, angle = d > 1 ? Math.atan2(E[d], E[0]) : 0;
  return { values: order.map((k) => clean(values[k])), angle: clean(((((angle * 180) / Math.PI) % 180) + 180) % 180), turn: clean(d > 1 ? skew[d] : 0), E, skew };
}

function joinMatrix(parts) {
  const { values, E, skew } = parts, d = values.length, out = [];
  for (let i = 0; i < d; i++) out.push(Array.from({ length: d }, (_, j) => { let v = skew[i * d + j]; for (let k = 0; k < d; k++) v += E[i * d + k] * values[k] * E[j * d + k]; return Number(v.toFixed(6)) + 0; }));
  return out;
}

function rotateAxes(parts, degrees) {
  const d = parts.values.length, by = ((degrees - parts.angle) * Math.PI) / 180, c = Math.cos(by), s = Math.sin(by), E = Float64Array.from(parts.E);
  for (let k = 0; k < d; k++) { const x = parts.E[k], y = parts.E[d + k]; E[k] = c * x - s * y; E[d + k] = s * x + c * y; }
  return { ...parts, E, angle: degrees };
}

function matrixControls(name, key, help) {
  const { system } = state, d = system.dim, head = Math.min(state.head, system.heads.length - 1), rows = system.heads[head][key], box = make("details", { open: state.openMatrix !== undefined ? state.openMatrix[key] : key === "value" });
  box.addEventListener("toggle", () => { state.openMatrix = { ...(state.openMatrix || { value: true, interaction: false }), [key]: box.open }; });
  box.append(make("summary", { text: name }));
  const set = (matrix) => { change((s) => { s.heads[head][key] = matrix; }); refreshEntries(); };
  const entries = make("div", { class: "entries wide", role: "group", "aria-label": `Entries of ${name}` });
  entries.style.gridTemplateColumns = `repeat(${d}, 1fr)`;
  const refreshEntries = () => { state.system.heads[head][key].forEach((row, i) => row.forEach((v, j) => { entries.children[i * d + j].value = v; })); };
  let parts = splitMatrix(rows);
  const sliders = (k) => slider(`Eigenvalue ${k + 1}`, { owner: name,
    low: -3, high: 3, value: parts.values[k],
    change: (v) => { parts = { ...splitMatrix(state.system.heads[head][key]), E: parts.E, values: parts.values.map((w, m) => (m === k ? v : w)) }; set(joinMatrix(parts)); },
    scan: (s, v) => { const other = { ...parts, values: parts.values.map((w, m) => (m === k ? v : w)) }; s.heads[head][key] = joinMatrix(other); },
  });
  for (let k = 0; k < d; k++) box.append(sliders(k));
  box.append(slider("Angle (°)", { owner: name, low: 0, high: 180, value: parts.angle, change: (v) => { parts = rotateAxes(parts, v); set(joinMatrix(parts)); } }));
  box.append(slider("Rotation", {
    owner: name,
    low: -3, high: 3, value: parts.turn,
    change: (v) => { const skew = new Float64Array(parts.skew); skew[d] = v; skew[1] = -v; parts = { ...parts, skew, turn: v }; set(joinMatrix(parts)); },
    scan: (s, v) => { const skew = new Float64Array(parts.skew); skew[d] = v; skew[1] = -v; s.heads[head][key] = joinMatrix({ ...parts, skew }); },
  }));
  for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) {
    entries.append(make("input", { type: "number", step: "any", value: rows[i][j], "aria-label": `${name}, row ${i + 1}, column ${j + 1}`, onchange: (event) => {
      const v = Number(event.target.value);
      if (!Number.isFinite(v)) return refreshEntries();
      change((s) => { s.heads[head][key][i][j] = v; }, { rebuild: true });
    } }));
  }
  const buttons = make("div", { class: "choice wide" }, ...[["I", eye(d)], ["−I", eye(d).map((row) => row.map((v) => (v ? -v : 0)))], ["random", null]].map(([text, matrix]) => make("button", { type: "button", text, "aria-label": `${name}: ${text}`, onclick: () => {
    const drawn = matrix || Array.from({ length: d }, () => Array.from({ length: d }, () => rounded((Math.random() + Math.random() + Math.random() - 1.5) * 1.6, 2)));
    change((s) => { s.heads[head][key] = drawn; }, { rebuild: true });
  } })));
  box.append(make("div", { class: "control" }, make("span", { text: "Entries" }), entries), make("div", { class: "control" }, make("span", { text: "Set to" }), buttons), make("p", { class: "hint small", text: help }));
  return box;
}

function buildControls() {
  const form = $("controls"), { system } = state, focus = document.activeElement && form.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") || document.activeElement.dataset.value : null;
  controlCount = 0;
  const set = (make) => make.filter(Boolean);
  const fieldset = (title, ...parts) => make("fieldset", {}, make("legend", { text: title }), ...set(parts));
  const start = system.start, kind = String(start.kind).split(":")[0], drawn = kind === "points";
  const tokens = fieldset("Tokens",
    slider("Number", { low: 2, high: 1024, scale: "whole", value: tokenCount(system), change: (n) => change((s) => { s.start = drawn ? { kind: "uniform", tokens: n, seed: 0 } : { ...s.start, tokens: n }; s.masses = null; s.pinned = []; }, { keepTime: false, play: true }) }),
    choice("Start", [["uniform", "spread"], ["hemisphere", "half"], ["clusters", "groups"], ["polygon", "polygon"], ["gaussian", "Gaussian"], ["points", "drawn"]].filter(([key]) => key !== "gaussian" || system.space === "euclidean"), kind, (key) => {
      if (key === "points") { state.drawing = true; startFromHere(); change(() => {}, { rebuild: true, keepTime: false }); setPlaying(false); return notify("Click into the picture to add tokens."); }
      state.drawing = false;
      change((s) => { s.start = { kind: key === "clusters" ? "clusters:4,0.25" : key, tokens: key === "polygon" ? Math.min(12, tokenCount(s)) : tokenCount(s), seed: s.start.seed || 0 }; s.masses = null; s.pinned = []; }, { rebuild: true, keepTime: false, play: true });
    }),
    make("div", { class: "control" }, make("span", { text: "" }), make("div", { class: "choice wide" },
      make("button", { type: "button", text: "New random start", onclick: () => change((s) => { s.start = s.start.kind === "points" || kind === "polygon" ? { kind: "uniform", tokens: tokenCount(s), seed: Math.floor(1000 * Math.random()) } : { ...s.start, seed: (s.start.seed || 0) + 1 }; s.pinned = []; }, { rebuild: true, keepTime: false, play: true }) }),
      make("button", { type: "button", text: "Add by clicking", "aria-pressed": String(state.drawing), onclick: (event) => { state.drawing = !state.drawing; event.target.setAttribute("aria-pressed", String(state.drawing)); if (state.drawing) notify("Click into the picture to add tokens."); } }),
      drawn ? make("button", { type: "button", text: "Clear", onclick: () => { change((s) => { s.start = { kind: "points", points: [s.start.points[0]] }; s.masses = null; s.pinned = []; }, { keepTime: false }); setPlaying(false); } }) : "")),
  );
  const where = spaceName(system), axes = where.startsWith("ellip") ? symmetricEigen(flatMatrix(system.space.ellipsoid), system.dim).values.map((v) => rounded(v ** -0.5)) : null;
  const space = fieldset("Space",
    choice("Tokens live", [["circle", "circle"], ["sphere", "sphere"], ["ellipse", "ellipse"], ["ellipsoid", "ellipsoid"], ["plane", "plane"], ["space", "R³"]], where, changeSpace, HINTS[where]),
    ...(axes ? system.space.ellipsoid.map((row, k) => slider(`Half axis ${k + 1}`, { low: 0.4, high: 2.5, value: rounded(row[k] ** -0.5), change: (v) => change((s) => { s.space = { ellipsoid: eye(s.dim).map((r, i) => r.map((one, j) => (one ? (i === k ? rounded(v ** -2, 6) : s.space.ellipsoid[i][i]) : 0))) }; }) })) : []),
    system.space === "euclidean" ? make("label", { class: "check" }, make("input", { type: "checkbox", checked: state.rescaled, onchange: (event) => { state.rescaled = event.target.checked; change(() => {}); } }), "divide by the growth e^(tV) (picture only)") : "",
    system.space === "euclidean" && system.dim === 2 ? make("label", { class: "check" }, make("input", { type: "checkbox", checked: state.gaussian, onchange: (event) => { state.gaussian = event.target.checked; updatePanels(); invalidate(); saveAddress(); } }), "compare with the Gaussian (ellipse)") : "",
  );
  const attention = fieldset("Attention",
    slider("β (selectivity)", { low: -20, high: 200, scale: "both", value: system.beta, change: (v) => change((s) => { s.beta = v; }), scan: (s, v) => { s.beta = v; }, hint: "large: tokens see only near ones; negative: they look away" }),
    choice("Kernel", [["softmax", "softmax"], ["exponential", "exponential"], ["l2", "L2"], ["sigmoid", "sigmoid"], ["hardmax", "hardmax"]], system.kernel, (key) => change((s) => { s.kernel = key; if (key === "hardmax" && !s.layers && !(s.noise > 0)) s.layers = 0.1; }, { rebuild: true }), HINTS[system.kernel]),
    choice("Mask", [["full", "none"], ["causal", "causal"], ["window", "window"]], system.mask ? (system.mask.window ? "window" : "causal") : "full", (key) => change((s) => { s.mask = key === "full" ? null : key === "causal" ? "causal" : { window: 8 }; }, { rebuild: true }), HINTS[system.mask ? (system.mask.window ? "window" : "causal") : "full"]),
    system.mask && system.mask.window ? slider("Window", { low: 1, high: 256, scale: "whole", value: system.mask.window, change: (v) => change((s) => { s.mask = { window: v }; }), scan: (s, v) => { s.mask = { window: v }; } }) : "",
    system.dim % 2 === 0 ? choice("Positions", [["none", "none"], ["rotary", "rotary"]], system.positions ? "rotary" : "none", (key) => change((s) => { s.positions = key === "rotary" ? { rotary: 100 } : null; }, { rebuild: true }), HINTS[system.positions ? "rotary" : "none"]) : "",
    system.positions && system.dim > 2 ? slider("Base", { low: 1.5, high: 1e4, scale: "log", value: system.positions.rotary, change: (v) => change((s) => { s.positions = { rotary: v }; }) }) : "",
  );
  const many = system.heads.length, matrices = fieldset("Matrices",
    choice("Heads", [1, 2, 3, 4].map((k) => [k, String(k)]), many, (k) => { state.head = Math.min(state.head, k - 1); change((s) => { while (s.heads.length < k) s.heads.push(structuredClone(s.heads[s.heads.length - 1])); s.heads.length = k; }, { rebuild: true }); }),
    many > 1 ? choice("Edit head", Array.from({ length: many }, (_, k) => [k, String(k + 1)]), state.head, (k) => { state.head = k; buildControls(); showTheory(); }) : "",
    ...(system.heads[Math.min(state.head, many - 1)].query ? [make("p", { class: "small", text: "This head has its own query and key." })] : [matrixControls("Value V", "value", "What a seen token sends back. Positive eigenvalues attract, negative ones repel, rotation makes tokens circle.")]),
    system.heads[Math.min(state.head, many - 1)].query ? "" : matrixControls("Interaction W", "interaction", "How similarity is measured: the score of i and j is β ⟨x_i, W x_j⟩."),
  );
  const time = fieldset("Time",
    slider("Until t", { low: 0.5, high: 1e9, scale: "log", value: system.until, change: (v) => change((s) => { s.until = v; }) }),
    choice("Depth", [["flow", "continuous"], ["layers", "layers"]], system.layers ? "layers" : "flow", (key) => change((s) => { s.layers = key === "layers" ? 0.5 : null; if (key === "layers") { s.noise = 0; s.until = Math.min(s.until, 200); } }, { rebuild: true }), HINTS[system.layers ? "layers" : "flow"]),
    system.layers ? slider("Layer size", { low: 0.01, high: 4, scale: "log", value: system.layers, change: (v) => change((s) => { s.layers = v; }), scan: (s, v) => { s.layers = v; } }) : "",
    system.layers ? "" : slider("Noise", { low: 0, high: 3, scale: "zero", value: system.noise, change: (v) => change((s) => { s.noise = v; if (v > 0) { s.step = s.step || 0.02; s.until = Math.min(s.until, 100); } }, { rebuild: v > 0 !== system.noise > 0 && false }), scan: (s, v) => { s.noise = v; if (v > 0) { s.step = s.step || 0.02; s.until = Math.min(s.until, 100); } } }),
    system.noise > 0 ? slider("Step", { low: 0.001, high: 0.2, scale: "log", value: system.step, change: (v) => change((s) => { s.step = v; }) }) : "",
    make("label", { class: "check" }, make("input", { type: "checkbox", checked: system.reverse, onchange: (event) => change((s) => { s.reverse = event.target.checked; }, { keepTime: false, play: true }) }), "run time backwards"),
  );
  form.replaceChildren(tokens, attention, matrices, space, time);
  if (focus) (form.querySelector(`[aria-label="${CSS.escape(focus)}"]`) || form.querySelector(`[data-value="${CSS.escape(focus)}"]`))?.focus({ preventScroll: true });
}

/* ---------------------------------------------------------------- tokens: select, drag, pin, weigh */

function select(token) {
  state.selected = token;
  showToken();
  invalidate();
}

function showToken() {
  const box = $("token"), token = state.selected, { run, system } = state;
  box.hidden = token < 0 || !run;
  if (box.hidden) return;
  const pinned = (system.pinned || []).includes(token), mass = run.masses[token], had = box.contains(document.activeElement) ? document.activeElement.dataset.act : null;
  const name = run.words ? `“${run.words[token]}”` : `Token ${token + 1}`;
  box.replaceChildren(make("b", { text: name }), ` of ${run.n} · mass ${number(mass, 3)}`,
    make("div", { class: "row" },
      make("button", { type: "button", "data-act": "pin", "aria-pressed": String(pinned), text: pinned ? "Unpin" : "Pin", onclick: togglePin }),
      make("button", { type: "button", "data-act": "heavier", text: "+ mass", onclick: () => weigh(token, 1.5) }),
      make("button", { type: "button", "data-act": "lighter", text: "− mass", onclick: () => weigh(token, 1 / 1.5) }),
      make("button", { type: "button", "data-act": "remove", text: "Remove", onclick: removeToken }),
      make("button", { type: "button", "data-act": "close", "aria-label": "Close", text: "×", onclick: () => { select(-1); $("scene").focus(); } })));
  if (had) box.querySelector(`[data-act="${had}"]`)?.focus();
}

function togglePin() {
  const token = state.selected;
  if (token < 0) return;
  startFromHere();
  change((s) => { const pinned = s.pinned || []; s.pinned = pinned.includes(token) ? pinned.filter((k) => k !== token) : [...pinned, token]; }, { rebuild: true, keepTime: false });
  showToken();
}

function weigh(token, factor) {
  const n = tokenCount(state.system);
  change((s) => {
    const masses = s.masses ? [...s.masses] : new Array(n).fill(1 / n);
    masses[token] = Math.min(0.98, Math.max(1e-5, masses[token] * factor));
    const total = masses.reduce((sum, v) => sum + v, 0);
    s.masses = masses.map((v) => Number((v / total).toPrecision(8)));
  });
  setTimeout(showToken, 60);
}

function removeToken() {
  const token = state.selected;
  if (token < 0 || tokenCount(state.system) < 2) return;
  startFromHere((points) => points.splice(token, 1));
  change((s) => {
    if (s.masses) { const masses = s.masses.filter((_, k) => k !== token), total = masses.reduce((sum, v) => sum + v, 0); s.masses = masses.map((v) => v / total); }
    s.pinned = (s.pinned || []).filter((k) => k !== token).map((k) => (k > token ? k - 1 : k));
  }, { rebuild: true, keepTime: false });
  select(-1);
}

function addToken(point) {
  if (tokenCount(state.system) >= 2048) return notify("The page computes up to 2048 tokens.");
  startFromHere((points) => points.push(point.map((v) => Number(v.toFixed(6)) + 0)));
  change((s) => { if (s.masses) { const n = s.masses.length, masses = [...s.masses, 1 / n], total = masses.reduce((sum, v) => sum + v, 0); s.masses = masses.map((v) => v / total); } }, { rebuild: state.system.start.kind !== "points", keepTime: false });
}

const pointerPlace = (event) => { const canvas = $("scene"), box = canvas.getBoundingClientRect(); return [((event.clientX - box.left) * canvas.width) / box.width, ((event.clientY - box.top) * canvas.height) / box.height]; };

// the token under a pixel; on a globe those in front win
function tokenAt(x, y, reach = 1) {
  const { run } = state;
  if (!run || !scene.count) return -1;
  const p = scene.project({ at: state.at }), places = scene.placesAt(state.at), sizes = run.frames[Math.min(Math.round(state.at), scene.count - 1)].sizes;
  let best = -1, least = Infinity;
  for (let i = 0; i < run.n; i++) {
    const [u, v, z] = scene.toPixels(places.subarray(3 * i, 3 * i + 3), p), distance = Math.hypot(u - x, v - y), radius = (scene.size(run.n, sizes ? sizes[i] : 0) / 2) * reach + 4;
    const cost = distance - (scene.solid ? 6 * z : 0);
    if (distance < radius && cost < least) { least = cost; best = i; }
  }
  return best;
}

function dragToken(token, point) {
  const { system } = state;
  if (!state.live) {
    startFromHere();
    state.live = { token, pinned: system.pinned || [] };
    system.pinned = [...new Set([...state.live.pinned, token])];
    buildControls();
  } else if (state.run) startFromHere();
  system.start.points[token] = point.map((v) => Number(v.toFixed(6)) + 0);
  change(() => {}, { keepTime: false });
}

function dropToken() {
  const { live } = state;
  if (!live) return;
  state.live = null;
  change((s) => { s.pinned = live.pinned; }, { rebuild: true, keepTime: false });
}

function listenToPointer() {
  const canvas = $("scene"), fingers = new Map();
  let gesture = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    const [x, y] = pointerPlace(event);
    fingers.set(event.pointerId, [x, y]);
    if (fingers.size === 2) { gesture = { kind: "pinch", apart: spread(fingers), zoom: scene.camera.zoom }; return; }
    const token = tokenAt(x, y, event.pointerType === "touch" ? 2 : 1.2);
    gesture = { kind: token >= 0 ? "token" : "turn", token, x, y, moved: 0, playing: state.playing };
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = pointerPlace(event);
    if (!fingers.has(event.pointerId)) {
      const over = tokenAt(x, y);
      canvas.classList.toggle("hot", over >= 0);
      if (over !== state.hover) { state.hover = over; invalidate(); }
      return;
    }
    const last = fingers.get(event.pointerId);
    fingers.set(event.pointerId, [x, y]);
    if (!gesture) return;
    if (gesture.kind === "pinch") { scene.camera.zoom = Math.min(8, Math.max(0.3, (gesture.zoom * spread(fingers)) / gesture.apart)); return invalidate(); }
    gesture.moved = Math.max(gesture.moved, Math.hypot(x - gesture.x, y - gesture.y));
    if (gesture.moved < 5) return;
    if (gesture.kind === "turn") { scene.camera.turn(((x - last[0]) / canvas.height) * 3.2, ((y - last[1]) / canvas.height) * 3.2); return invalidate(); }
    if (state.run && !state.run.words && !state.rescaled && state.run.d <= 3) {
      const place = scene.placesAt(state.at).subarray(3 * gesture.token, 3 * gesture.token + 3), depth = scene.toPixels(place, scene.project({ at: state.at }))[2];
      if (gesture.depth === undefined) gesture.depth = depth;
      gesture.dragged = true;
      gesture.last = [x, y];
      if (!gesture.waiting) { // at most one new run per frame of the screen
        const { drag } = Object.assign(gesture, { waiting: true, drag: gesture.drag || dragger(gesture) });
        requestAnimationFrame(drag);
      }
      select(gesture.token);
    }
  });
  const end = (event) => {
    fingers.delete(event.pointerId);
    if (!gesture || fingers.size) return;
    const { kind, token, moved, dragged, drag, x, y } = gesture;
    gesture = null;
    if (dragged) { drag(); return dropToken(); }
    if (kind === "token" && moved < 5) select(token === state.selected ? -1 : token);
    else if (kind === "turn" && moved < 5) {
      if (state.drawing) addToken(scene.fromPixels(x, y, { at: state.at }));
      else select(-1);
    }
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);
  canvas.addEventListener("pointerleave", () => { if (!fingers.size && state.hover >= 0) { state.hover = -1; invalidate(); } });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x, y] = pointerPlace(event), over = tokenAt(x, y, 1.3);
    if (over >= 0 && !state.run.words) { select(over); weigh(over, Math.exp(-0.0025 * event.deltaY)); }
    else { scene.camera.zoom = Math.min(8, Math.max(0.3, scene.camera.zoom * Math.exp(-0.0012 * event.deltaY))); invalidate(); }
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => { const over = tokenAt(...pointerPlace(event), 1.3); if (over >= 0) { select(over); togglePin(); } });
}

// moves the token of a gesture to where the pointer was last
const dragger = (gesture) => () => {
  if (!gesture.waiting) return;
  gesture.waiting = false;
  dragToken(gesture.token, scene.fromPixels(...gesture.last, { at: state.at }, gesture.depth));
};

const spread = (fingers) => { const [a, b] = [...fingers.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]) || 1; };

function listenToKeys() {
  $("scene").addEventListener("keydown", (event) => {
    const { run } = state;
    if (!run || event.ctrlKey || event.metaKey || event.altKey) return;
    const turning = event.shiftKey && event.key.startsWith("Arrow"), token = state.selected;
    const keys = {
      " ": () => setPlaying(!state.playing), ArrowLeft: () => goTo(state.at - 4), ArrowRight: () => goTo(state.at + 4), Home: () => goTo(0), End: () => goTo(Infinity),
      PageUp: () => goTo(state.at + 40), PageDown: () => goTo(state.at - 40), "]": () => select((token + 1) % run.n), "[": () => select((token - 1 + run.n) % run.n), Escape: () => select(-1),
      p: togglePin, r: restart, "+": () => token >= 0 && weigh(token, 1.5), "=": () => token >= 0 && weigh(token, 1.5), "-": () => token >= 0 && weigh(token, 1 / 1.5), Delete: removeToken, Backspace: removeToken,
    };
    const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    if (turning) { event.preventDefault(); scene.camera.turn(...turns[event.key]); return invalidate(); }
    const act = keys[event.key] || keys[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

function restart() {
  state.at = 0;
  setPlaying(!calm.matches);
}
