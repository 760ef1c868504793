// Leaving with something: the state in the address, commands, Python code, pictures, films, data.
"use strict";

const SCHEMA = "attractor.system/1";
const eye = (d) => Array.from({ length: d }, (_, i) => Array.from({ length: d }, (_, j) => (i === j ? 1 : 0)));

const DEFAULTS = {
  schema: SCHEMA, space: "sphere", dim: 3, start: { kind: "uniform", tokens: 64, seed: 0 }, masses: null, kernel: "softmax", beta: 4, heads: null, mask: null,
  positions: null, noise: 0, noise_seed: 0, step: null, layers: null, until: 100, rtol: 1e-9, atol: 1e-11, merge: null, stop: [], reverse: false,
};

// a complete description; throws one sentence for what cannot be read
function completeSystem(given) {
  if (!given || typeof given !== "object") throw new Error("a system is an object with the keys of attractor.system/1");
  if (given.schema && given.schema !== SCHEMA) throw new Error(`this is ${given.schema}, and the page reads ${SCHEMA}`);
  const system = { ...structuredClone(DEFAULTS), ...structuredClone(given), schema: SCHEMA };
  delete system.view;
  const start = system.start || {};
  if (start.kind === "points") {
    if (!Array.isArray(start.points) || !start.points.length || !start.points.every((row) => Array.isArray(row) && row.length === start.points[0].length && row.every(Number.isFinite))) throw new Error("points must be rows of finite numbers of one length");
    system.dim = start.points[0].length;
  } else if (!["uniform", "hemisphere", "clusters", "polygon", "gaussian"].includes(String(start.kind).split(":")[0])) throw new Error(`the start ${start.kind} is not known to the page`);
  const d = system.dim, square = (matrix) => Array.isArray(matrix) && matrix.length === d && matrix.every((row) => Array.isArray(row) && row.length === d && row.every(Number.isFinite));
  if (!Number.isInteger(d) || d < 2 || d > 8) throw new Error(`the page computes in 2 to 8 dimensions, not ${d}; attractor explore computes in any`);
  const n = tokenCount(system);
  if (!Number.isInteger(n) || n < 1 || n > 2048) throw new Error(`the page computes up to 2048 tokens, not ${n}; attractor explore computes more`);
  if (!["softmax", "exponential", "l2", "sigmoid", "hardmax"].includes(system.kernel)) throw new Error(`the kernel ${system.kernel} is not computed in the page; attractor explore does`);
  if (!system.heads || !system.heads.length) system.heads = [{ interaction: eye(d), value: eye(d) }];
  for (const head of system.heads) {
    head.value = head.value || eye(d);
    if (!head.query) head.interaction = head.interaction || eye(d);
    if (!square(head.value) || (!head.query && !square(head.interaction))) throw new Error(`interaction and value must be ${d} by ${d} numbers`);
  }
  if (typeof system.space === "object" ? !square(system.space.ellipsoid) : !["sphere", "euclidean"].includes(system.space)) throw new Error("the space must be sphere, euclidean or {ellipsoid: matrix}");
  for (const name of ["beta", "until", "rtol", "atol", "noise"]) if (!Number.isFinite(system[name])) throw new Error(`${name} must be a finite number`);
  if (!(system.until > 0)) throw new Error("until must be positive");
  // everything that is written into commands and programs is a number or a known word
  if (start.kind !== "points" && !/^[a-z]+(:[-+0-9.,e]+)?$/.test(String(start.kind))) throw new Error(`the start ${start.kind} is not known to the page`);
  if (system.mask === "none") system.mask = null;
  if (system.mask !== null && system.mask !== "causal" && !(typeof system.mask === "object" && Number.isInteger(system.mask.window) && system.mask.window >= 1)) throw new Error("the mask must be null, causal or {window: w}");
  if (system.positions !== null && !(typeof system.positions === "object" && Number.isFinite(system.positions.rotary) && system.positions.rotary > 0)) throw new Error("positions must be null or {rotary: base}");
  if (system.stop !== null && !(Array.isArray(system.stop) && system.stop.every((name) => ["consensus", "collapsed", "steady"].includes(name)))) throw new Error("stop must be a list of consensus, collapsed, steady");
  for (const name of ["noise_seed", "step", "layers", "merge"]) if (system[name] !== null && !Number.isFinite(system[name])) throw new Error(`${name} must be a finite number`);
  for (const name of ["seed", "spread", "clusters"]) if (start[name] !== undefined && start[name] !== null && !Number.isFinite(start[name])) throw new Error(`${name} of the start must be a finite number`);
  for (const { query, key } of system.heads) if (query && !(Array.isArray(key) && query.length === key.length && [...query, ...key].every((row) => Array.isArray(row) && row.length === d && row.every(Number.isFinite)))) throw new Error(`query and key must be rows of ${d} numbers`);
  system.reverse = system.reverse === true;
  if (system.masses && (system.masses.length !== n || !system.masses.every((mass) => mass > 0))) throw new Error(`masses must be ${n} positive numbers`);
  if (system.noise > 0) { system.step = system.step || 0.02; system.layers = null; }
  if (system.positions && d % 2 && !system.heads[0].query) throw new Error("rotary positions turn pairs of coordinates: take an even dimension");
  if (system.merge === null || !canMerge(system)) system.merge = canMerge(system) ? 1e-6 : 0;
  return system;
}

const tokenCount = (system) => (system.start.kind === "points" ? system.start.points.length : system.start.tokens);

// merging is exact under full attention that attracts, on a curved space
function canMerge(system) {
  const attracts = system.heads.every(({ value }) => value[0][0] > 0 && value.every((row, i) => row.every((v, j) => v === (i === j ? value[0][0] : 0))));
  return system.space !== "euclidean" && !system.mask && !system.positions && !(system.noise > 0) && !system.layers && !system.reverse && attracts && system.kernel !== "hardmax" && !(system.pinned && system.pinned.length);
}

// only what differs from the defaults, for short links
function shortSystem(system) {
  const out = {};
  for (const [key, value] of Object.entries(system)) {
    if (key === "schema" || JSON.stringify(value) === JSON.stringify(DEFAULTS[key])) continue;
    if (key === "heads" && value.length === 1 && JSON.stringify(value[0]) === JSON.stringify({ interaction: eye(system.dim), value: eye(system.dim) })) continue;
    if (key === "merge" && value === (canMerge(system) ? 1e-6 : 0)) continue;
    if (key === "pinned" && !value.length) continue;
    out[key] = value;
  }
  return out;
}

const toBase64 = (bytes) => { let text = ""; for (const byte of bytes) text += String.fromCharCode(byte); return btoa(text).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, ""); };
const fromBase64 = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (letter) => letter.charCodeAt(0));
const through = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

async function encodeState(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  if (bytes.length < 900 || typeof CompressionStream === "undefined") return `#s=${toBase64(bytes)}`;
  return `#z=${toBase64(await through(bytes, new CompressionStream("deflate-raw")))}`;
}

async function decodeState(hash) {
  const kind = hash.slice(1, 3), text = hash.slice(3);
  if (kind !== "s=" && kind !== "z=") return null;
  let bytes = fromBase64(text);
  if (kind === "z=") bytes = await through(bytes, new DecompressionStream("deflate-raw"));
  return JSON.parse(new TextDecoder().decode(bytes));
}

function saveBlob(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/* ---------------------------------------------------------------- texts that repeat a run; attractor.explorer.System writes the same */

const writeRows = (matrix) => `[${matrix.map((row) => `[${row.map(String).join(", ")}]`).join(", ")}]`;
const inlineRows = (matrix) => matrix.map((row) => row.map(String).join(",")).join(";");
const isIdentity = (matrix) => matrix.every((row, i) => row.every((v, j) => v === (i === j ? 1 : 0)));
const isIsotropic = (system) => system.heads.length === 1 && !system.heads[0].query && isIdentity(system.heads[0].interaction) && isIdentity(system.heads[0].value) && !system.reverse;
const maskText = (mask) => (!mask ? "none" : typeof mask === "string" ? mask : `window:${mask.window}`);

// query, key or value of every head; values have the sign that time has
function headMatrices(system, name) {
  const plain = (matrix) => matrix.map((row) => row.map((v) => v + 0));
  return system.heads.map((head) => {
    if (name === "query") return head.query || eye(system.dim);
    if (name === "key") return plain(head.query ? head.key : head.interaction);
    return head.value.map((row) => row.map((v) => (system.reverse ? (v ? -v : 0) : v)));
  });
}

// keyword arguments of attractor.flow
function flowOptions(system) {
  const options = { until: system.until };
  const fixed = system.noise > 0 || system.layers;
  if (!fixed) {
    if (system.rtol !== 1e-8) options.rtol = system.rtol;
    if (system.atol !== 1e-10) options.atol = system.atol;
    if (system.merge !== null) options.merge = system.merge || false;
  }
  if (system.layers) Object.assign(options, { step: system.layers, method: "layers" });
  else if (system.noise > 0) options.step = system.step;
  return system.noise > 0 ? options : { ...options, stop: system.stop || [] };
}

const quoteShell = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, `'"'"'`)}'`);

function writeCommand(system) {
  if (system.pinned && system.pinned.length) throw new Error("a command cannot pin tokens; copy Python instead");
  const words = ["attractor", "simulate"], { start } = system, options = flowOptions(system);
  if (start.kind === "points") words.push("--tokens-file", inlineRows(start.points));
  else {
    words.push("--tokens", String(start.tokens), "--dim", String(system.dim));
    if (start.kind !== "uniform") words.push("--start", start.kind);
    if ((start.spread ?? 1) !== 1) words.push("--spread", String(start.spread));
    words.push("--seed", String(start.seed || 0));
  }
  if (system.masses) words.push("--masses", inlineRows([system.masses]));
  if (isIsotropic(system)) words.push("--beta", String(system.beta));
  else {
    for (const name of ["query", "key", "value"]) words.push(`--${name}`, headMatrices(system, name).map(inlineRows).join("|"));
    words.push("--scale", String(system.beta));
  }
  if (system.kernel !== "softmax") words.push("--kernel", system.kernel);
  if (system.mask) words.push("--mask", maskText(system.mask));
  if (system.positions) words.push("--positions", "rotary", "--theta", String(system.positions.rotary));
  if (system.space === "sphere") words.push("--space", "sphere");
  else if (typeof system.space === "object") words.push("--space", "ellipsoid", "--ellipsoid", inlineRows(system.space.ellipsoid));
  if (system.noise > 0) {
    words.push("--noise", String(system.noise));
    if (system.noise_seed) words.push("--noise-seed", String(system.noise_seed));
  }
  for (const name of ["until", "method", "step", "rtol", "atol"]) if (name in options) words.push(`--${name}`, String(options[name]));
  if ("merge" in options) words.push("--merge", system.merge ? String(system.merge) : "off");
  if (!(system.noise > 0)) words.push("--stop", (system.stop || []).join(",") || "none");
  return words.map(quoteShell).join(" ");
}

function writePython(system) {
  const lines = ["import attractor as at", ""], extra = [], { start } = system;
  if (system.kernel !== "softmax") extra.push(`kernel="${system.kernel}"`);
  if (system.mask) extra.push(`mask="${maskText(system.mask)}"`);
  if (system.positions) extra.push(`positions=at.Rotary(${system.positions.rotary})`);
  const pinned = system.pinned && system.pinned.length;
  if (pinned) {
    lines.push("", "class Pinned(at.Attention):", '    """Attention under which some tokens stay where they are."""', "", "    def velocity(self, tokens, time=0.0, *, skip_self=False):",
      "        moved = super().velocity(tokens, time, skip_self=skip_self).clone()", `        moved[..., ${JSON.stringify(system.pinned)}, :] = 0.0`, "        return moved", "", "");
  }
  const name = pinned ? "Pinned" : "at.Attention";
  if (isIsotropic(system)) lines.push(`law = ${name}.isotropic(${[system.dim, system.beta, ...extra].join(", ")})`);
  else {
    lines.push(`law = ${name}(`);
    for (const part of ["query", "key", "value"]) {
      const found = headMatrices(system, part).map(writeRows);
      lines.push(`    ${part}=${found.length === 1 ? found[0] : `[${found.join(", ")}]`},`);
    }
    for (const option of [`scale=${system.beta}`, ...extra]) lines.push(`    ${option},`);
    lines.push(")");
  }
  const masses = system.masses ? `, masses=[${system.masses.map(String).join(", ")}]` : "";
  if (start.kind === "points") lines.push(`tokens = at.Tokens(${writeRows(start.points)}${masses})`);
  else lines.push(`tokens = at.Tokens.sample("${start.kind}", ${start.tokens}, ${system.dim}, seed=${start.seed || 0}${(start.spread ?? 1) === 1 ? "" : `, scale=${start.spread}`}${masses})`);
  const options = { space: system.space === "sphere" ? "at.Sphere()" : system.space === "euclidean" ? "at.Euclidean()" : `at.Ellipsoid(${writeRows(system.space.ellipsoid)})` };
  if (system.noise > 0) options.noise = `at.Noise(${system.noise}${system.noise_seed ? `, seed=${system.noise_seed}` : ""})`;
  const literal = (value) => (value === false ? "False" : Array.isArray(value) ? `[${value.map((part) => `"${part}"`).join(", ")}]` : typeof value === "string" ? `"${value}"` : String(value));
  for (const [key, value] of Object.entries(flowOptions(system))) options[key] = literal(value);
  lines.push(`run = at.flow(law, tokens, ${Object.entries(options).map(([key, value]) => `${key}=${value}`).join(", ")})`, "print(run.outcome)", "");
  return lines.join("\n");
}

if (typeof module !== "undefined") module.exports = { ...(module.exports || {}), completeSystem, shortSystem, writeCommand, writePython, encodeState, decodeState };
