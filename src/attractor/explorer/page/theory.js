// Observables of a state, and the theorems whose hypotheses are simple enough to be checked in a page.
"use strict";

/* ---------------------------------------------------------------- observables */

const CLUSTER_RADIUS = 0.1; // of the longest token, as in attractor.clusters

// the first member of the component of each token; tokens closer than the radius are joined
function findComponents(points, n, d, radius = CLUSTER_RADIUS) {
  let longest = 0;
  for (let i = 0; i < n; i++) {
    let s = 0;
    for (let a = 0; a < d; a++) s += points[i * d + a] ** 2;
    longest = Math.max(longest, s);
  }
  const limit = radius ** 2 * longest, root = Int32Array.from({ length: n }, (_, i) => i);
  const find = (i) => { while (root[i] !== i) { root[i] = root[root[i]]; i = root[i]; } return i; };
  for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) {
    let s = 0;
    for (let a = 0; a < d; a++) s += (points[i * d + a] - points[j * d + a]) ** 2;
    if (s >= limit && s > 0) continue;
    const p = find(i), q = find(j);
    if (p < q) root[q] = p; else root[p] = q;
  }
  for (let i = 0; i < n; i++) root[i] = find(i);
  return root;
}

const countComponents = (roots) => roots.reduce((count, root, i) => count + (root === i ? 1 : 0), 0);

// distance from the origin to the convex hull: the largest angle without tokens decides in the plane, Wolfe's algorithm elsewhere
function hemisphereMargin(points, n, d) {
  if (d === 2) {
    const angles = Array.from({ length: n }, (_, i) => Math.atan2(points[2 * i + 1], points[2 * i])).sort((a, b) => a - b);
    const unit = Array.from({ length: n }, (_, i) => Math.hypot(points[2 * i], points[2 * i + 1])).every((r) => Math.abs(r - 1) < 1e-6);
    if (unit) {
      let gap = angles[0] + 2 * Math.PI - angles[n - 1];
      for (let i = 1; i < n; i++) gap = Math.max(gap, angles[i] - angles[i - 1]);
      return Math.max(0, -Math.cos(gap / 2));
    }
  }
  const row = (i) => points.subarray(i * d, (i + 1) * d), dot = (a, b) => a.reduce((sum, value, k) => sum + value * b[k], 0);
  let corral = [0], weights = [1], x = Array.from(row(0));
  for (let i = 1; i < n; i++) if (dot(row(i), row(i)) < dot(x, x)) { corral = [i]; x = Array.from(row(i)); }
  for (let round = 0; round < 200; round++) {
    let best = 0, least = Infinity;
    for (let i = 0; i < n; i++) { const value = dot(x, row(i)); if (value < least) { least = value; best = i; } }
    if (least >= dot(x, x) - 1e-12 || corral.includes(best)) break;
    corral.push(best);
    weights.push(0);
    for (let minor = 0; minor < 20; minor++) {
      // nearest point of the affine hull: (G + 1 1') u = 1
      const m = corral.length, G = new Float64Array(m * m);
      for (let i = 0; i < m; i++) for (let j = 0; j < m; j++) G[i * m + j] = 1 + dot(row(corral[i]), row(corral[j])) + (i === j ? 1e-13 : 0);
      const inverse = invert(G, m);
      if (!inverse) return 0;
      let u = Array.from({ length: m }, (_, i) => inverse.subarray(i * m, (i + 1) * m).reduce((s, v) => s + v, 0));
      const total = u.reduce((s, v) => s + v, 0);
      u = u.map((value) => value / total);
      if (u.every((value) => value > 1e-12)) { weights = u; break; }
      let step = 1;
      u.forEach((value, k) => { if (value <= 1e-12) step = Math.min(step, weights[k] / Math.max(weights[k] - value, 1e-300)); });
      weights = weights.map((value, k) => value + step * (u[k] - value));
      const kept = weights.map((value) => value > 1e-12);
      corral = corral.filter((_, k) => kept[k]);
      weights = weights.filter((_, k) => kept[k]);
    }
    x = new Array(d).fill(0);
    corral.forEach((i, k) => { for (let a = 0; a < d; a++) x[a] += weights[k] * points[i * d + a]; });
    if (dot(x, x) < 1e-16) return 0;
  }
  const length = Math.sqrt(dot(x, x));
  return length < 1e-8 ? 0 : length;
}

function effectiveRank(points, masses, n, d) {
  const moment = new Float64Array(d * d);
  for (let i = 0; i < n; i++) for (let a = 0; a < d; a++) for (let b = 0; b < d; b++) moment[a * d + b] += masses[i] * points[i * d + a] * points[i * d + b];
  const values = symmetricEigen(moment, d).values.map((value) => Math.sqrt(Math.max(0, value))), total = values.reduce((s, v) => s + v, 0);
  return total > 0 ? Math.exp(-values.reduce((s, v) => s + (v > 0 ? (v / total) * Math.log(v / total) : 0), 0)) : 0;
}

// mass-weighted mean of the cosines of two different tokens
function meanCosine(points, masses, n, d) {
  const sum = new Float64Array(d);
  let own = 0, total = 0;
  for (let i = 0; i < n; i++) {
    let size = 0;
    for (let a = 0; a < d; a++) size += points[i * d + a] ** 2;
    size = Math.sqrt(size) || 1;
    for (let a = 0; a < d; a++) sum[a] += (masses[i] * points[i * d + a]) / size;
    own += masses[i] ** 2;
    total += masses[i];
  }
  return total * total - own > 1e-12 ? (sum.reduce((s, v) => s + v * v, 0) - own) / (total * total - own) : 1;
}

function consensusGap(points, masses, n, d) {
  const mean = new Float64Array(d);
  let total = 0, gap = 0;
  for (let i = 0; i < n; i++) { total += masses[i]; for (let a = 0; a < d; a++) mean[a] += masses[i] * points[i * d + a]; }
  for (let i = 0; i < n; i++) {
    let s = 0;
    for (let a = 0; a < d; a++) s += (points[i * d + a] - mean[a] / total) ** 2;
    gap = Math.max(gap, s);
  }
  return Math.sqrt(gap);
}

function largestNorm(points, n, d) {
  let size = 0;
  for (let i = 0; i < n; i++) {
    let s = 0;
    for (let a = 0; a < d; a++) s += points[i * d + a] ** 2;
    size = Math.max(size, s);
  }
  return Math.sqrt(size);
}

const HEAVY = 200; // tokens above which curves that compare all pairs are computed at some frames only

// all curves at one state; masses are those of the original tokens
function observe(law, space, points, masses, n, d, full = true) {
  const units = space.root ? unitPoints(space, points, n, d) : points;
  const roots = full ? findComponents(points, n, d) : null;
  return {
    roots,
    clusters: roots ? countComponents(roots) : NaN,
    gap: consensusGap(points, masses, n, d),
    margin: space.curved && full ? hemisphereMargin(units, n, d) : NaN,
    energy: full ? law.energy(points, masses, n) : NaN,
    cosine: meanCosine(units, masses, n, d),
    rank: effectiveRank(points, masses, n, d),
    norm: largestNorm(points, n, d),
  };
}

function unitPoints(space, points, n, d) {
  const out = new Float64Array(points.length);
  for (let i = 0; i < n; i++) for (let a = 0; a < d; a++) for (let b = 0; b < d; b++) out[i * d + a] += space.root[a * d + b] * points[i * d + b];
  return out;
}

/* ---------------------------------------------------------------- matrices of a description */

// interactions P (with beta) and values V of every head, in coordinates of the unit sphere
function sphereMatrices(system) {
  const d = system.dim, space = new Space(system.space, d), sign = system.reverse ? -1 : 1;
  return system.heads.map((head) => {
    let W = head.query ? multiply(transpose(flatMatrix(head.query), head.query.length, d), flatMatrix(head.key), d, head.query.length, d) : flatMatrix(head.interaction);
    let V = flatMatrix(head.value).map((value) => sign * value);
    if (space.root) {
      W = multiply(multiply(space.inverseRoot, W, d, d, d), space.inverseRoot, d, d, d);
      V = multiply(multiply(space.root, V, d, d, d), space.inverseRoot, d, d, d);
    }
    return { P: W.map((value) => system.beta * value), V };
  });
}

const sizeOf = (a) => Math.hypot(...a);
const trace = (a, d) => Array.from({ length: d }, (_, k) => a[k * (d + 1)]).reduce((s, v) => s + v, 0);
const distanceTo = (a, c, d) => sizeOf(a.map((value, k) => value - (k % (d + 1) === 0 ? c : 0))) / Math.max(sizeOf(a), 1e-300);
const asymmetryOf = (a, d) => sizeOf(a.map((value, k) => value - a[(k % d) * d + Math.floor(k / d)])) / Math.max(2 * sizeOf(a), 1e-300);
const definitenessOf = (values) => {
  const plus = values.filter((value) => value > 0).length, minus = values.filter((value) => value < 0).length;
  return values.length ? (values.reduce((s, v) => s + v, 0)) / Math.max(values.reduce((s, v) => s + Math.abs(v), 0), 1e-300) : (plus - minus);
};

// what the chips and the panels show of the matrices
function measureMatrices(system) {
  const d = system.dim, sign = system.reverse ? -1 : 1;
  return system.heads.map((head) => {
    const W = head.query ? multiply(transpose(flatMatrix(head.query), head.query.length, d), flatMatrix(head.key), d, head.query.length, d) : flatMatrix(head.interaction);
    const V = flatMatrix(head.value).map((value) => sign * value), inverse = invert(V, d);
    const metric = inverse ? multiply(W, inverse, d, d, d) : null;
    const interaction = symmetricEigen(symmetricPart(W, d), d).values, form = metric ? symmetricEigen(symmetricPart(metric, d), d).values : null;
    const spectrum = eigenvalues(V, d);
    return {
      interaction, metric: form, interactionSpectrum: eigenvalues(W, d), valueSpectrum: spectrum,
      abscissa: Math.max(...spectrum.map(([real]) => real)),
      interactionIndex: definitenessOf(interaction), metricIndex: form ? definitenessOf(form) : NaN,
      metricAsymmetry: metric ? asymmetryOf(metric, d) : NaN, interactionAsymmetry: asymmetryOf(W, d),
    };
  });
}

// I_1(beta) / I_0(beta), by a continued fraction
function besselRatio(beta) {
  let ratio = 0;
  for (let k = Math.ceil(60 + 2 * beta); k >= 1; k--) ratio = 1 / ((2 * k) / beta + ratio);
  return ratio;
}
function besselI1(beta) {
  let term = beta / 2, sum = term;
  for (let k = 1; k < 500; k++) { term *= (beta * beta) / 4 / (k * (k + 1)); sum += term; if (term < 1e-17 * sum) break; }
  return sum;
}
// noise above which the uniform density of the circle is stable, P = beta I and V = I
const criticalNoise = (beta, kernel) => (kernel === "exponential" ? besselI1(beta) : besselRatio(beta)) / beta;

/* ---------------------------------------------------------------- theorems */

// titles in the documentation, which make the addresses of its sections
const TITLES = {
  "consensus.T2": "Hemisphere", "consensus.T3": "Causal, identity value", "consensus.clustering": "Global clustering", "consensus.clustering-circle": "Global clustering on the circle",
  "consensus.metastability": "Separated tokens wait exponentially long", "consensus.polygons": "Regular polygons on the circle", "consensus.T4": "Causal, symmetric value", "consensus.T4-bipartite-full": "Opposite poles under full attention",
  "regimes.T1": "Collapse, symmetric metric", "regimes.T4": "Polarisation", "regimes.T8": "Causal collapse", "regimes.T8.converse": "Causal divergence", "meanfield.N1": "Critical noise",
};
const sectionOf = (key) => `${key}: ${TITLES[key]}`.toLowerCase().replace(/[^a-z0-9]+/g, "-");

const number = (value, digits = 3) => (Number.isFinite(value) ? String(Number(value.toPrecision(digits))) : "–");
const holds = (text, ok, margin = "") => ({ text, holds: Boolean(ok), margin });

// Theorems for this very system. A theorem applies where all its hypotheses hold; "almost every start" is not checked.
function predictFates(system, start, masses) {
  const d = system.dim, n = start.length / d, space = new Space(system.space, d), parts = sphereMatrices(system), curved = space.curved;
  const averaging = system.kernel === "softmax" || system.kernel === "l2", softmax = system.kernel === "softmax";
  const full = !system.mask, causal = system.mask === "causal", still = !(system.noise > 0), flowing = !system.layers;
  const plain = !system.positions, single = parts.length === 1;
  const level = masses.every((mass) => Math.abs(mass - masses[0]) <= 1e-12 * masses[0]);
  const weights = parts.map(({ V }) => trace(V, d) / d), total = weights.reduce((s, v) => s + v, 0);
  const scalar = Math.max(...parts.map(({ V }, k) => (sizeOf(V) ? distanceTo(V, weights[k], d) : 0)));
  const attracts = weights.every((c) => c >= 0) && total > 0;
  const beta = single ? trace(parts[0].P, d) / d : NaN, isotropic = single && (sizeOf(parts[0].P) === 0 || distanceTo(parts[0].P, beta, d) < 1e-9);
  const units = space.root ? unitPoints(space, start, n, d) : start, margin = curved ? hemisphereMargin(units, n, d) : NaN;
  const base = [holds("tokens on a sphere or an ellipsoid", curved), holds("no noise", still), holds("continuous time", flowing)];
  const identity = holds("every value matrix is a multiple of I", scalar < 1e-9, `off by ${number(scalar, 2)}`);
  const attraction = holds("values attract (c > 0)", attracts, `c = ${number(total)}`);
  const flat = [holds("flat space", !curved), holds("no noise", still), holds("continuous time", flowing)];
  const exceptional = curved ? findException(system, units, n, d) : "";
  const generic = holds("generic start", !exceptional, exceptional);
  const found = [];
  const add = (key, title, fate, rate, hypotheses, say, extra = {}) => found.push({ key, title, fate, rate, hypotheses, say, applies: hypotheses.every((part) => part.holds), ...extra });

  add("consensus.T2", "Hemisphere", "consensus", total, [
    ...base, holds("softmax weights", softmax), holds("full attention, no positions", full && plain), identity, attraction,
    holds("all tokens in one open hemisphere", margin > 1e-9, `margin ${number(margin)}`),
  ], "All tokens start on one side of the sphere, so they must all meet.", { margin });
  add("consensus.T3", "Causal consensus", "consensus", total / 2, [
    ...base, holds("softmax weights", softmax), holds("causal mask", causal), holds("equal masses", level), identity, attraction, generic,
  ], "Token 1 sees only itself and never moves; every other token ends up on it.");
  add("consensus.clustering", "Global clustering", "consensus", total, [
    ...base, holds("one softmax head, full attention, equal masses", softmax && full && single && level && plain),
    holds("dimension at least 3", d >= 3, `d = ${d}`), identity, attraction,
    holds("interaction is β I with β ≥ 0", isotropic && beta >= 0, `β = ${number(beta)}`), generic, holds("tokens span more than a plane", curved && spannedDirections(units, n, d) >= Math.min(n, 3)),
  ], "Almost every start ends in a single cluster, but that may take a time exponential in β.");
  add("consensus.clustering-circle", "Clustering on the circle", "consensus", total, [
    ...base, holds("one softmax head, full attention, equal masses", softmax && full && single && level && plain),
    holds("circle", d === 2), identity, attraction, holds("interaction is β I with β ≥ −0.16", isotropic && beta >= -0.16, `β = ${number(beta)}`), generic,
  ], "Almost every start on the circle ends in a single cluster.");
  const angle = curved ? smallestAngle(units, n, d) : NaN, least = Math.min(...masses), crowd = (1 - least) / least;
  const bound = (angle / (4 * total * crowd)) * Math.exp(Math.min(700, beta * (1 - Math.cos(angle / 2))));
  add("consensus.metastability", "Metastability", "metastable", NaN, [
    ...base, holds("one softmax head, full attention", softmax && full && single && plain), identity, attraction,
    holds("interaction is β I with β > 0", isotropic && beta > 0, `β = ${number(beta)}`),
    holds("tokens start well apart (bound above 1)", bound > 1, `no merge before t = ${number(bound)}`),
  ], `No two tokens come close before t = ${number(bound)}.`, { time: bound });
  if (d === 2 && system.start.kind === "polygon") {
    const rates = Array.from({ length: n - 1 }, (_, k) => polygonRate(n, k + 1, beta, total)), worst = Math.max(...rates);
    add("consensus.polygons", "Polygons attract", "equilibrium", -worst, [
      ...base, holds("one softmax head, full attention, equal masses", softmax && full && single && level && plain), identity, attraction,
      holds("interaction is β I", isotropic), holds("the regular polygon is stable", worst < 0, `largest rate ${number(worst)}`),
    ], "The regular polygon is a stable equilibrium: repulsive scores keep the tokens apart.");
  }
  const V0 = single ? flatMatrix(system.heads[0].value).map((value) => (system.reverse ? -value : value)) : null;
  const sum = parts.reduce((acc, { V }) => acc.map((value, k) => value + V[k]), new Float64Array(d * d));
  const symmetric = asymmetryOf(sum, d) < 1e-9, top = symmetricEigen(symmetricPart(sum, d), d), gap = top.values[d - 1] - (d > 1 ? top.values[d - 2] : 0);
  const direction = Array.from({ length: d }, (_, a) => top.vectors[a * d + d - 1]);
  let side = Infinity, other = Infinity;
  for (let i = 0; i < n; i++) {
    let s = 0;
    for (let a = 0; a < d; a++) s += direction[a] * units[i * d + a];
    side = Math.min(side, s);
    other = Math.min(other, -s);
  }
  add("consensus.T4", "Causal, symmetric value", "consensus", Math.min(gap > 0 ? top.values[d - 1] - Math.max(top.values[d - 2] / 2, top.values[0] / n) : NaN), [
    ...base, holds("softmax weights", softmax), holds("causal mask", causal), holds("equal masses", level), holds("one head, symmetric value", single && symmetric),
    holds("simple, positive top eigenvalue", gap > 1e-9 && top.values[d - 1] > 0, `gap ${number(gap)}`),
    holds("all tokens on one side of its eigenvector", Math.max(side, other) > 0, `margin ${number(Math.max(side, other))}`),
  ], "All tokens turn to the leading direction of the value matrix.");
  if (single && symmetric && d > 1 && gap > 1e-9 && top.values[d - 1] > 0) {
    const { P } = parts[0], p = P.reduce((s, v, k) => s + v * direction[Math.floor(k / d)] * direction[k % d], 0), need = Math.max(0, top.values[d - 2] / top.values[d - 1]);
    let poles = 0;
    for (let i = 0; i < n; i++) {
      let s = 0;
      for (let a = 0; a < d; a++) s += direction[a] * units[i * d + a];
      poles += Math.abs(Math.abs(s) - 1) < 1e-9 ? Math.sign(s) : Infinity;
    }
    add("consensus.T4-bipartite-full", "Two opposite camps", "bipartite", NaN, [
      ...base, holds("one softmax head, full attention, equal masses", softmax && full && level && plain), holds("value is symmetric", symmetric), holds("simple, positive top eigenvalue", true, `gap ${number(gap)}`),
      holds("attention is sharp: tanh p > λ₂/λ₁", Math.tanh(p) > need, `tanh p = ${number(Math.tanh(p))}, λ₂/λ₁ = ${number(need)}`), holds("half of the tokens start at each pole", poles === 0),
    ], "Half of the tokens at each end of the leading direction is a stable state.");
  }
  if (!curved && single) {
    const { metric, interaction, metricAsymmetry, interactionAsymmetry, abscissa } = measureMatrices(system)[0];
    const standard = [...flat, holds("one softmax head, full attention, no positions", softmax && full && single && plain)];
    const signed = metric && metric.map((value) => system.beta * value).sort((a, b) => a - b), negative = metric && signed[d - 1] < 0, positive = metric && signed[0] > 0, up = system.beta * (system.beta > 0 ? interaction[0] : interaction[d - 1]) > 0;
    add("regimes.T1", "Collapse", "collapse", NaN, [...standard,
      holds("metric β W V⁻¹ is negative (one of W, metric symmetric)", negative && Math.min(metricAsymmetry, interactionAsymmetry) < 1e-9, metric ? `largest ${number(signed[d - 1])}` : "V singular"),
      holds("interaction is positive", up, `least ${number(system.beta * interaction[0])}`),
    ], "Every token tends to zero, whatever the start.");
    add("regimes.T4", "Tokens run apart", "divergence", NaN, [...standard,
      holds("metric β W V⁻¹ is symmetric and positive", positive && metricAsymmetry < 1e-9, metric ? `least ${number(signed[0])}` : "V singular"),
      holds("interaction is definite", interaction[0] * interaction[d - 1] > 0),
    ], "Distances grow without bound.");
    add(abscissa < 0 ? "regimes.T8" : "regimes.T8.converse", abscissa < 0 ? "Causal collapse" : "Causal divergence", abscissa < 0 ? "collapse" : "divergence", abscissa < 0 ? -abscissa / n : abscissa, [
      ...flat, holds("one head of averaging weights", averaging && (softmax || abscissa > 0)), holds("causal mask", causal),
      holds("no eigenvalue of V on the imaginary axis", Math.abs(abscissa) > 1e-9, `largest real part ${number(abscissa)}`),
    ], abscissa < 0 ? "Under a causal mask the value alone decides: every token tends to zero." : "Under a causal mask the value alone decides: the tokens run to infinity.");
  }
  if (system.noise > 0) {
    const critical = isotropic && beta > 0 && d === 2 && space.name === "sphere" ? criticalNoise(beta, system.kernel) : NaN;
    add("meanfield.N1", "Critical noise", system.noise > critical ? "uniform" : "order", Math.abs(beta * 0 + (critical - system.noise)), [
      holds("circle", d === 2 && space.name === "sphere"), holds("softmax or exponential", softmax || system.kernel === "exponential"), holds("full attention, one head", full && single && plain),
      holds("value is I", V0 !== null && distanceTo(V0, 1, d) < 1e-9), holds("interaction is β I with β > 0", isotropic && beta > 0),
      holds("many tokens (the theorem is about a density)", n >= 100, `n = ${n}`),
    ], system.noise > critical
      ? `Noise ${number(system.noise)} is above the threshold ${number(critical)}: the tokens stay spread out.`
      : `Noise ${number(system.noise)} is below the threshold ${number(critical)}: the uniform state is unstable, order sets in.`, { critical });
  }
  return found;
}

// why almost every start does not include this one: two opposite tokens, the symmetry of a polygon, or no motion; "" if it does
function findException(system, units, n, d) {
  if (system.start.kind === "polygon") return "a regular polygon";
  for (let i = 0; i < Math.min(n, 1024); i++) for (let j = i + 1; j < Math.min(n, 1024); j++) {
    let s = 0;
    for (let a = 0; a < d; a++) s += (units[i * d + a] + units[j * d + a]) ** 2;
    if (s < 1e-16) return "two tokens are opposite";
  }
  if (system.start.kind !== "points") return "";
  const run = new Integration({ ...system, noise: 0, layers: null, merge: 0, until: 1 }, [0]);
  return run.f.every((v) => Math.abs(v) < 1e-9) ? "no token moves" : "";
}

const spannedDirections = (points, n, d) => {
  const moment = new Float64Array(d * d);
  for (let i = 0; i < n; i++) for (let a = 0; a < d; a++) for (let b = 0; b < d; b++) moment[a * d + b] += (points[i * d + a] * points[i * d + b]) / n;
  return symmetricEigen(moment, d).values.filter((value) => value > 1e-16).length;
};

function smallestAngle(points, n, d) {
  let top = -1;
  for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) {
    let s = 0;
    for (let a = 0; a < d; a++) s += points[i * d + a] * points[j * d + a];
    top = Math.max(top, s);
  }
  return Math.acos(Math.min(1, Math.max(-1, top)));
}

function polygonRate(n, k, beta, c) {
  let sum = 0, total = 0;
  for (let j = 0; j < n; j++) {
    const u = (2 * Math.PI * j) / n, w = Math.exp(beta * Math.cos(u) - Math.abs(beta));
    total += w;
    sum += w * (Math.cos(u) - beta * Math.sin(u) ** 2) * (Math.cos(k * u) - 1);
  }
  return (c * sum) / total;
}

// what a run did: the name of its fate, and the rate at which the tokens came together (NaN if they did not)
function judgeRun(system, frames, curves) {
  if (!frames.length) return { fate: "", rate: NaN };
  const last = curves.length - 1, curved = system.space !== "euclidean", first = curves[0], end = curves[last];
  let fate = `${end.clusters} clusters`;
  if (curved) fate = end.clusters === 1 && end.gap < 0.05 ? "consensus" : end.clusters > 0.6 * (frames[0].points.length / system.dim) && end.clusters > 2 ? "spread out" : fate;
  else if (end.norm < 0.02 * first.norm) fate = "collapse";
  else if (end.norm > 50 * first.norm) fate = end.clusters > 1 ? `divergence, ${end.clusters} directions` : "divergence";
  const used = [];
  curves.forEach((curve, k) => { if (curve.gap > 2e-5 && curve.gap < 3e-2) used.push([frames[k].t, Math.log(curve.gap)]); });
  return { fate, rate: used.length >= 4 && end.gap < 1e-3 ? -slope(used) : NaN };
}

function slope(pairs) {
  const count = pairs.length, mx = pairs.reduce((s, [x]) => s + x, 0) / count, my = pairs.reduce((s, [, y]) => s + y, 0) / count;
  let sxy = 0, sxx = 0;
  for (const [x, y] of pairs) { sxy += (x - mx) * (y - my); sxx += (x - mx) ** 2; }
  return sxy / sxx;
}

if (typeof module !== "undefined") module.exports = { ...(module.exports || {}), TITLES, sectionOf, observe, predictFates, measureMatrices, criticalNoise, judgeRun, hemisphereMargin, findComponents, effectiveRank, meanCosine, consensusGap };
