// The served page: requests to attractor explore on this machine, all theorems, and runs that are too large for the browser.
"use strict";

const session = { key: null, client: Array.from(crypto.getRandomValues(new Uint8Array(9)), (byte) => byte.toString(16).padStart(2, "0")).join(""), asked: 0, timer: 0, run: null };

// the token in the address is exchanged for a key, which survives a reload of this tab
async function openSession() {
  const address = new URL(location.href), token = address.searchParams.get("token");
  try { session.key = sessionStorage.getItem("attractor-key"); } catch { /* not kept */ }
  if (token) {
    const response = await fetch("/api/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
    if (response.ok) session.key = (await response.json()).key;
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
    try { if (session.key) sessionStorage.setItem("attractor-key", session.key); } catch { /* not kept */ }
  }
  return session.key !== null;
}

async function request(path, body, options = {}) {
  const headers = { "Content-Type": "application/json", "X-Attractor-Key": session.key, "X-Attractor-Client": session.client };
  const response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body: body === undefined ? undefined : JSON.stringify(body), ...options });
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error || `the server answers ${response.status}`);
  return response;
}

/* ---------------------------------------------------------------- theorems */

// what decides comes first; inequalities that hold at every time say nothing about the limit
const ORDER = ["consensus", "bipartite", "collapse", "divergence", "blow-up", "equilibrium", "contraction", "separation", "bounded", "metastable", "monotone", "identity"];

function readTheorem(row) {
  const say = [row.meaning && `${row.meaning[0].toUpperCase()}${row.meaning.slice(1)}.`, row.rate && `${row.rate[0].toUpperCase()}${row.rate.slice(1)}.`, row.exception && `This start is an exception: ${row.exception}.`, `${row.source}${row.place ? `, ${row.place}` : ""} (${row.status}).`];
  return {
    key: row.key, title: row.title, fate: row.fate, rate: NaN, time: row.time, applies: row.applies, say: say.filter(Boolean).join(" "), statement: row.html,
    hypotheses: row.hypotheses.map((part) => ({ text: part.text, holds: part.verdict === "holds", margin: [part.verdict === "holds" || part.verdict === "fails" ? "" : part.verdict, part.margin === null ? "" : `margin ${formatNumber(part.margin)}`, part.detail].filter(Boolean).join(", ") })),
  };
}

// ask for all theorems when the system has not changed for a moment
function askTheorems() {
  clearTimeout(session.timer);
  const asked = ++session.asked;
  session.timer = setTimeout(async () => {
    const { system } = state, own = state.theory;
    if (!system) return;
    try {
      const { theorems } = await (await request("/api/predict", { system: forPython(system) })).json();
      if (asked !== session.asked) return;
      const place = (row) => (ORDER.indexOf(row.fate) + 1 || ORDER.length + 1);
      const known = new Map(own.map((theorem) => [theorem.key, theorem])), list = theorems.sort((a, b) => place(a) - place(b)).map((row) => {
        const found = readTheorem(row), mine = known.get(row.key);
        if (!mine) return found;
        const numbers = Object.fromEntries(["margin", "critical"].filter((name) => mine[name] !== undefined).map((name) => [name, mine[name]]));
        return { ...found, ...numbers, rate: mine.applies && found.applies ? mine.rate : NaN }; // the page has rates as numbers
      });
      takeTheorems(list);
      $("theory").dataset.served = String(list.length);
    } catch (error) {
      if (asked === session.asked) $("theory").dataset.served = `not: ${error.message}`;
    }
  }, 400);
}

// a description as Python reads it: without what only the page knows
function forPython(system) {
  const { pinned, view: seen, ...rest } = system;
  return rest.noise > 0 || rest.layers ? rest : { ...rest, step: null };
}

/* ---------------------------------------------------------------- runs on the server */

const readPoints32 = (text) => { const bytes = fromBase64(text); return Float64Array.from(new Float32Array(bytes.buffer, 0, bytes.length / 4)); };

// run a description on the server; progress(t, until, frames) is called while it runs
async function runOnServer(system, { save = null, progress = () => {}, signal } = {}) {
  const response = await request("/api/run", { system, save, encoding: "base64" }, { signal }), reader = response.body.getReader(), decoder = new TextDecoder();
  const found = { frames: [], events: [], outcome: null, stats: null };
  for (let rest = "", ended = false; !ended;) {
    const { value, done } = await reader.read();
    rest += done ? "\n" : decoder.decode(value, { stream: true });
    ended = done;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line) continue;
      const row = JSON.parse(line);
      if (row.kind === "frame") found.frames.push({ t: row.t, points: readPoints32(row.points32) });
      else if (row.kind === "event") found.events.push({ kind: row.event, time: row.time, mass: row.mass, size: row.size });
      else if (row.kind === "progress") progress(row.t, row.until, found.frames.length);
      else if (row.kind === "error") throw new Error(row.message);
      else if (row.kind === "end") { found.outcome = { name: row.outcome.name, time: row.outcome.time, message: row.outcome.message }; found.stats = row.stats; }
    }
  }
  if (!found.outcome) throw new Error("the run was cancelled");
  return found;
}

const DRAWN = 2048; // tokens of a run on the server that are drawn

// the first directions of the picture are the principal ones of all frames: an orthogonal change of coordinates
function principalAxes(frames, d) {
  if (d <= 3) return null;
  const moments = new Float64Array(d * d), some = frames.filter((_, k) => k % Math.ceil(frames.length / 24) === 0);
  for (const { points } of some) for (let i = 0; i < points.length; i += d * Math.ceil(points.length / d / 256)) for (let a = 0; a < d; a++) for (let b = a; b < d; b++) moments[a * d + b] += points[i + a] * points[i + b];
  for (let a = 0; a < d; a++) for (let b = 0; b < a; b++) moments[a * d + b] = moments[b * d + a];
  return symmetricEigen(moments, d).vectors; // ascending; columns
}

// coordinates of rows (m, d) along the axes, the largest first
function turnRows(rows, axes, d) {
  const out = new Float64Array(rows.length);
  for (let o = 0; o < rows.length; o += d) for (let b = 0; b < d; b++) { let sum = 0; for (let a = 0; a < d; a++) sum += rows[o + a] * axes[a * d + (d - 1 - b)]; out[o + b] = sum; }
  return out;
}

const rowsOf = (flat, d) => Array.from({ length: flat.length / d }, (_, i) => Array.from(flat.subarray(i * d, (i + 1) * d)));

function turnSystem(system, axes) {
  const d = system.dim, turn = (matrix) => rowsOf(turnRows(flatMatrix(matrix), axes, d), d), flip = (matrix) => matrix[0].map((_, j) => matrix.map((row) => row[j]));
  const both = (matrix) => flip(turn(flip(turn(matrix))));
  return {
    ...system, space: typeof system.space === "object" ? { ellipsoid: both(system.space.ellipsoid) } : system.space,
    heads: system.heads.map((head) => ({ ...(head.query ? { query: turn(head.query), key: turn(head.key) } : { interaction: both(head.interaction) }), value: both(head.value) })),
  };
}

// compute a system of any size on the server and show it; the controls of the page are for smaller ones
async function showServed(system, { words = null, title, notes = [] }) {
  session.run?.abort();
  const abort = (session.run = new AbortController()), d = system.dim, bar = $("served-progress");
  bar.hidden = false;
  bar.value = 0;
  try {
    const whole = { ...DEFAULTS, ...system, heads: (system.heads && system.heads.length ? system.heads : [{}]).map((head) => ({ ...(head.query ? {} : { interaction: head.interaction || eye(d) }), ...head, value: head.value || eye(d) })) };
    const count = whole.start.kind === "points" ? whole.start.points.length : whole.start.tokens, save = Math.max(10, Math.min(200, Math.floor(4e6 / (count * d))));
    const found = await runOnServer(forPython(system), { save: Array.from(saveTimes(whole.until, save, "log")), signal: abort.signal, progress: (t, until) => { bar.value = Math.asinh(10 * t) / Math.asinh(10 * until); } });
    const axes = principalAxes(found.frames, d), step = Math.ceil(count / DRAWN);
    const keep = (points) => { if (step === 1) return points; const out = []; for (let i = 0; i < count; i += step) for (let a = 0; a < d; a++) out.push(points[i * d + a]); return Float64Array.from(out); };
    const frames = found.frames.map(({ t, points }) => ({ t, points: axes ? turnRows(keep(points), axes, d) : keep(points) }));
    const shown = { ...(axes ? turnSystem(whole, axes) : whole), start: { kind: "points", points: rowsOf(frames[0].points, d) }, masses: step === 1 ? whole.masses : null };
    state.system = shown;
    state.preset = null;
    state.served = system;
    state.selected = -1;
    state.theory = [];
    playFrames({ system: shown, times: Float64Array.from(frames, (frame) => frame.t), frames, events: step === 1 ? found.events : [], outcome: found.outcome, words });
    $("story").replaceChildren(make("h2", { text: title }), make("p", { text: `Computed by Python: ${count.toLocaleString("en")} tokens in ${d} dimensions, ${found.stats.evaluations.toLocaleString("en")} evaluations in ${formatNumber(found.stats.seconds)} s (${found.stats.method}, engine ${found.stats.engine}). ${found.outcome.message[0].toUpperCase()}${found.outcome.message.slice(1)}.` }),
      ...(axes ? [make("p", { text: "The picture shows the three principal directions of the motion." })] : []), ...(step > 1 ? [make("p", { text: `One of ${step} tokens is drawn and measured.` })] : []), ...notes.map((note) => make("p", { class: "small", text: note })));
    $("controls").replaceChildren(make("p", { class: "small", text: "This run was computed by the server. Choose a preset above to go on with the page's own controls." }));
    for (const button of $("presets").children) button.setAttribute("aria-pressed", "false");
    showTheory();
    const waiting = $("theory").querySelector(".chips"), predicted = $("theory").querySelector(".compare dd");
    waiting.replaceChildren(make("span", { class: "small", text: "All theorems are being examined…" }));
    predicted.textContent = "…";
    askServed(system);
    if (!calm.matches) setPlaying(true);
    $("stage").scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (error.name !== "AbortError") notify(error.message);
  } finally {
    if (session.run === abort) bar.hidden = true;
  }
}

// theorems of a run on the server are those of the system that was sent
async function askServed(system) {
  const asked = ++session.asked;
  clearTimeout(session.timer);
  try {
    const { theorems } = await (await request("/api/predict", { system: forPython(system) })).json();
    if (asked === session.asked) { takeTheorems(theorems.map(readTheorem)); $("theory").dataset.served = String(theorems.length); }
  } catch (error) {
    if (asked !== session.asked) return;
    notify(error.message);
    $("theory").querySelector(".chips").replaceChildren(make("span", { class: "small", text: `The theorems could not be examined: ${error.message}.` }));
  }
}

/* ---------------------------------------------------------------- start */

function buildServed() {
  const number = (id, label, value, max) => make("label", { class: "small" }, `${label} `, make("input", { type: "number", id, min: 1, max, value, required: true }));
  const form = make("form", { class: "bar", id: "served-form" },
    make("b", { text: "Run in Python: " }), number("served-tokens", "tokens", 5000, 200000), number("served-dim", "dimensions", 3, 128),
    make("button", { type: "submit", text: "Run" }), make("button", { type: "button", text: "Stop", onclick: () => session.run?.abort() }),
    make("progress", { id: "served-progress", max: 1, value: 0, hidden: true, "aria-label": "Progress of the run" }));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const n = Number($("served-tokens").value), d = Number($("served-dim").value), base = state.served || state.system, same = base.dim === d;
    const kind = base.start.kind === "points" ? "uniform" : base.start.kind;
    const system = { ...forPython(base), dim: d, start: { kind, tokens: n, seed: base.start.seed || 0 }, masses: null, ...(same ? {} : { heads: null, space: typeof base.space === "object" ? "sphere" : base.space, positions: null }), rtol: Math.max(base.rtol, n > 4096 ? 1e-6 : 1e-8), merge: null };
    showServed(system, { title: "Run in Python", notes: same || !base.heads || isIsotropic(base) ? [] : ["The matrices do not fit this dimension: identity matrices take their place."] });
  });
  $("model").hidden = false;
  $("model").append(make("h2", { text: "Computed by attractor on this machine" }), make("p", { class: "small", text: "The law above with more tokens or dimensions than a browser computes; where the dimension changes, W and V become the identity." }), form);
}

async function startServer() {
  try {
    if (!(await openSession())) return notify("The address was used already: this page computes alone. Open the last address that attractor explore printed.");
    buildServed();
    buildModels().catch((error) => notify(`The models cannot be listed: ${error.message}`));
    document.addEventListener("system", () => { state.served = null; askTheorems(); });
    askTheorems();
    for (const [kind, what] of [["command", "Command"], ["python", "Python"]]) { // of a run on the server, as it was sent
      const plain = EXPORTS[kind];
      EXPORTS[kind] = async () => (state.served ? copyText((await (await request("/api/describe", { system: forPython(state.served) })).json())[kind], what) : plain());
    }
  } catch (error) {
    notify(`The server does not answer: ${error.message}`);
  }
}
