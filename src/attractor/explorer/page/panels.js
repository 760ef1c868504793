// Small drawings beside the scene: curves, matrices, spectra, the disc of covariances.
"use strict";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// a canvas sized to its element, cleared; returns the context in CSS pixels
function fit(canvas) {
  const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect(), width = Math.max(1, box.width), height = Math.max(1, box.height);
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

const CURVES = [
  { key: "clusters", title: "Clusters", step: true, help: "groups of tokens closer than a tenth of the longest" },
  { key: "gap", title: "Consensus gap", log: true, help: "largest distance of a token from the mean" },
  { key: "margin", title: "Hemisphere", low: 0, high: 1, help: "distance of the tokens' hull from the centre" },
  { key: "energy", title: "Energy", help: "interaction energy" },
  { key: "cosine", title: "Mean cosine", low: -1, high: 1, help: "of two different tokens" },
  { key: "rank", title: "Effective rank", low: 1, help: "number of directions that the tokens use" },
];

const formatNumber = (value) => {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e5 || size < 1e-3)) return value.toExponential(1).replace("e+", "e").replace("-", "−");
  return String(Number(value.toPrecision(3))).replace("-", "−");
};

// the value of a curve at the last frame up to a place that has one
function curveValue(run, key, at) {
  for (let k = Math.min(Math.round(at), run.curves.length - 1); k >= 0; k--) if (Number.isFinite(run.curves[k][key])) return run.curves[k][key];
  return NaN;
}

// what is drawn of a curve: frame numbers and heights in [0, 1]
function curvePoints(run, { key, log, low, high }) {
  const pairs = [];
  run.curves.forEach((curve, k) => { const v = log ? Math.log10(Math.max(curve[key], 1e-12)) : curve[key]; if (Number.isFinite(v)) pairs.push([k, v]); });
  if (!pairs.length) return { pairs: [], least: 0, most: 1 };
  let least = Infinity, most = -Infinity;
  for (const [, v] of pairs) { least = Math.min(least, v); most = Math.max(most, v); }
  if (log) least = Math.max(least, most - 9);
  if (low !== undefined) least = Math.min(low, least);
  if (high !== undefined) most = Math.max(high, most);
  if (key === "clusters") least = Math.min(least, 1);
  if (most - least < 1e-9 * Math.max(1, Math.abs(most))) { least -= 0.5; most += 0.5; }
  return { pairs, least, most };
}

function drawCurve(canvas, run, spec, at) {
  const { context, width, height } = fit(canvas), pad = 4, total = run.times.length - 1;
  const { pairs, least, most } = curvePoints(run, spec), x = (k) => pad + ((width - 2 * pad) * k) / total, y = (v) => height - pad - ((height - 2 * pad) * (Math.max(v, least) - least)) / (most - least);
  context.lineJoin = "round";
  const trace = (until, colour, size) => {
    context.beginPath();
    let last = null;
    for (const [k, v] of pairs) {
      if (k > until) break;
      if (last === null) context.moveTo(x(k), y(v));
      else { if (spec.step) context.lineTo(x(k), y(last)); context.lineTo(x(k), y(v)); }
      last = v;
    }
    context.strokeStyle = colour;
    context.lineWidth = size;
    context.stroke();
  };
  trace(Infinity, css("--rule"), 1.5);
  trace(at, css("--accent"), 2);
  context.fillStyle = css("--quiet");
  context.fillRect(x(Math.min(at, total)) - 0.5, 0, 1, height);
}

// a scale of colours from the ground to the accent for values in [0, 1]
function paintMatrix(canvas, values, size, diverging, dark) {
  const pixels = new ImageData(size, size);
  const ground = parseHex(css("--soft")), warm = dark ? [1, 0.62, 0.45] : [0.75, 0.24, 0.05], cold = dark ? [0.42, 0.72, 1] : [0.02, 0.36, 0.66];
  for (let k = 0; k < size * size; k++) {
    const v = values[k], colour = blend(ground, diverging && v < 0 ? warm : cold, Math.min(1, Math.abs(v)));
    for (let c = 0; c < 3; c++) pixels.data[4 * k + c] = 255 * colour[c];
    pixels.data[4 * k + 3] = 255;
  }
  canvas.width = canvas.height = size;
  canvas.style.imageRendering = "pixelated";
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

const SHOWN = 96; // tokens of a matrix that is drawn

// tokens in the order of a picture of a matrix: of the sequence, or by the angle around the leading axes
function matrixOrder(places, n, ordered) {
  const all = Array.from({ length: n }, (_, i) => i);
  if (!ordered) all.sort((i, j) => Math.atan2(places[3 * i + 1], places[3 * i]) - Math.atan2(places[3 * j + 1], places[3 * j]));
  return n > SHOWN ? Array.from({ length: SHOWN }, (_, k) => all[Math.floor((k * n) / SHOWN)]) : all;
}

function drawMatrices(gram, attention, points, d, law, masses, order, dark) {
  const n = masses.length, size = order.length, cosines = new Float64Array(size * size), norms = order.map((i) => Math.hypot(...points.subarray(i * d, (i + 1) * d)) || 1);
  order.forEach((i, a) => order.forEach((j, b) => {
    let s = 0;
    for (let c = 0; c < d; c++) s += points[i * d + c] * points[j * d + c];
    cosines[a * size + b] = s / norms[a] / norms[b];
  }));
  paintMatrix(gram, cosines, size, true, dark);
  const weights = new Float64Array(size * size);
  law.reserve(n);
  law.project(law.heads[0], points, n);
  order.forEach((i, a) => {
    const total = law.weigh(law.heads[0], i, n, masses), begin = law.first(i), end = law.causal ? i + 1 : n;
    let top = 0;
    for (let j = begin; j < end; j++) top = Math.max(top, law.scores[j] / total);
    order.forEach((j, b) => { weights[a * size + b] = j >= begin && j < end ? Math.sqrt(law.scores[j] / total / (top || 1)) : 0; });
  });
  paintMatrix(attention, weights, size, false, dark);
}

// eigenvalues in the complex plane
function drawSpectrum(canvas, spectra, label) {
  const { context, width, height } = fit(canvas);
  const reach = 1.25 * Math.max(0.2, ...spectra.flat().map(([re, im]) => Math.max(Math.abs(re), Math.abs(im)))), unit = Math.min(width, height) / 2 / reach;
  const x = (v) => width / 2 + unit * v, y = (v) => height / 2 - unit * v;
  context.strokeStyle = css("--rule");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(0, y(0)); context.lineTo(width, y(0)); context.moveTo(x(0), 0); context.lineTo(x(0), height);
  context.stroke();
  context.fillStyle = css("--quiet");
  context.font = "11px system-ui, sans-serif";
  const step = 10 ** Math.floor(Math.log10(reach)), tick = reach / step > 4 ? 2 * step : step;
  for (let v = tick; v < reach; v += tick) { context.fillRect(x(v), y(0) - 3, 1, 6); context.fillRect(x(-v), y(0) - 3, 1, 6); }
  context.fillText(formatNumber(tick), x(tick) - 4, y(0) + 14);
  context.fillText(label, 6, 14);
  spectra.forEach((values, head) => {
    for (const [re, im] of values) {
      context.beginPath();
      context.arc(x(re), y(im), 5.5, 0, 7);
      context.fillStyle = re > 1e-9 ? cssColour(wheelColour(0.68 + 0.11 * head, 0.65, 0.14)) : re < -1e-9 ? cssColour(wheelColour(0.12 + 0.05 * head, 0.68, 0.15)) : css("--quiet");
      context.fill();
      context.strokeStyle = css("--card");
      context.stroke();
    }
  });
}

// shape of a planar covariance as a point of the disc: the centre is a circle, the rim a line, the angle twice its direction
function discPoint([a, b, c]) {
  const total = a + c;
  return total > 0 ? [(a - c) / total, (2 * b) / total] : [0, 0];
}

function drawDisc(canvas, closure, cloud, at, total) {
  const { context, width, height } = fit(canvas), radius = Math.min(width, height) / 2 - 14, x = (v) => width / 2 + radius * v, y = (v) => height / 2 - radius * v;
  context.strokeStyle = css("--rule");
  context.lineWidth = 1.5;
  for (const r of [1, 0.5]) { context.beginPath(); context.arc(x(0), y(0), r * radius, 0, 7); context.stroke(); }
  const glyph = (u, v) => { // the ellipse that a place stands for
    const turn = Math.atan2(v, u) / 2, r = Math.hypot(u, v);
    context.beginPath();
    context.ellipse(x(u), y(v), 9 * Math.sqrt((1 + r) / 2), 9 * Math.sqrt(Math.max(0.02, (1 - r) / 2)), -turn, 0, 7);
    context.strokeStyle = css("--quiet");
    context.lineWidth = 1;
    context.stroke();
  };
  for (let k = 0; k < 8; k++) glyph(0.98 * Math.cos((Math.PI * k) / 4), 0.98 * Math.sin((Math.PI * k) / 4));
  const path = (states, colour, size, until) => {
    context.beginPath();
    states.forEach((state, k) => { if (k > until || !state) return; const [u, v] = discPoint(state); if (k === 0) context.moveTo(x(u), y(v)); else context.lineTo(x(u), y(v)); });
    context.strokeStyle = colour;
    context.lineWidth = size;
    context.stroke();
  };
  path(closure, css("--rule"), 2, total);
  path(cloud, css("--near"), 1.5, at);
  path(closure, css("--accent"), 2.5, at);
  for (const [states, colour] of [[cloud, css("--near")], [closure, css("--accent")]]) {
    const state = states[Math.min(Math.round(at), states.length - 1)];
    if (!state) continue;
    const [u, v] = discPoint(state);
    context.beginPath();
    context.arc(x(u), y(v), 5, 0, 7);
    context.fillStyle = colour;
    context.fill();
  }
}

const covarianceOf = (points, masses, n) => {
  let mx = 0, my = 0, a = 0, b = 0, c = 0;
  for (let i = 0; i < n; i++) { mx += masses[i] * points[2 * i]; my += masses[i] * points[2 * i + 1]; }
  for (let i = 0; i < n; i++) { const u = points[2 * i] - mx, v = points[2 * i + 1] - my; a += masses[i] * u * u; b += masses[i] * u * v; c += masses[i] * v * v; }
  return [a, b, c, mx, my];
};

// mean and covariance [a, b, c, mx, my] of the Gaussian closure of softmax attention at some times; null after blow-up
function gaussianClosure(system, start, times) {
  const sign = system.reverse ? -1 : 1, heads = system.heads.map((head) => ({ V: flatMatrix(head.value).map((v) => sign * v), A: transpose(flatMatrix(head.interaction), 2, 2).map((v) => system.beta * v) }));
  const rates = ([a, b, c, mx, my]) => {
    const S = [a, b, b, c], out = [0, 0, 0, 0, 0];
    for (const { V, A } of heads) {
      const SA = multiply(S, A, 2, 2, 2), B = multiply(V, SA, 2, 2, 2), BS = multiply(B, S, 2, 2, 2), shift = [mx + SA[0] * mx + SA[1] * my, my + SA[2] * mx + SA[3] * my];
      out[0] += 2 * BS[0]; out[1] += BS[1] + BS[2]; out[2] += 2 * BS[3];
      out[3] += V[0] * shift[0] + V[1] * shift[1]; out[4] += V[2] * shift[0] + V[3] * shift[1];
    }
    return out;
  };
  const states = [];
  let y = start, t = 0, blown = false;
  for (const time of times) {
    for (let guard = 0; t < time && !blown && guard < 20000; guard++) {
      const size = Math.max(y[0], y[2]), speed = Math.max(...rates(y).map(Math.abs)) / Math.max(size, 1e-12), h = Math.min(time - t, 0.02 / Math.max(speed, 1e-6));
      const k1 = rates(y), add = (k, w) => y.map((v, i) => v + w * k[i]), k2 = rates(add(k1, h / 2)), k3 = rates(add(k2, h / 2)), k4 = rates(add(k3, h));
      y = y.map((v, i) => v + (h / 6) * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]));
      t = h === time - t ? time : t + h;
      if (!(Math.max(y[0], y[2]) < 1e8)) { blown = true; states.blowUp = t; }
    }
    states.push(blown ? null : y);
  }
  return states;
}
