// Runs in a worker: integrates one system at a time in slices, so that a newer request interrupts an older one.
"use strict";

const SLICE = 12; // milliseconds between looks at the queue of messages
let current = 0;

const pause = (() => {
  const channel = new MessageChannel(), waiting = [];
  channel.port1.onmessage = () => waiting.shift()();
  return () => new Promise((resolve) => { waiting.push(resolve); channel.port2.postMessage(0); });
})();

self.onmessage = async ({ data }) => {
  if (data.tableau) return setTableau(data.tableau);
  current = data.id;
  try {
    if (data.kind === "run") await integrate(data);
    else if (data.kind === "scan") await scan(data);
  } catch (error) {
    self.postMessage({ id: data.id, kind: "error", message: error.message });
  }
};

async function integrate({ id, system, count, clock }) {
  const times = saveTimes(system.until, count, clock), run = new Integration(system, times);
  const n = run.total, d = run.d, masses = system.masses ? Float64Array.from(system.masses) : new Float64Array(n).fill(1 / n);
  const heavy = n > HEAVY ? Math.ceil((n / HEAVY) ** 2) : 1, law = new Law(system);
  self.postMessage({ id, kind: "start", n, d, times: run.times });
  let sent = 0, events = 0, last = 0;
  for (;;) {
    const done = run.advance(SLICE);
    const frames = [], moved = [];
    const began = Date.now();
    while (sent < run.frames.length && (done || Date.now() - began < 2 * SLICE)) {
      const frame = run.frames[sent], full = sent % heavy === 0 || sent === run.times.length - 1;
      const curve = observe(law, run.space, frame.points, masses, n, d, full), sizes = new Float32Array(n);
      if (full) { // masses that are drawn as one dot
        const roots = findComponents(frame.points, n, d, 0.2 * CLUSTER_RADIUS);
        for (let i = 0; i < n; i++) sizes[roots[i]] += masses[i];
        for (let i = 0; i < n; i++) sizes[i] = sizes[roots[i]];
      }
      frames.push({ t: frame.t, points: frame.points, sizes: full ? sizes : null, curve: { ...curve, roots: undefined } });
      moved.push(frame.points.buffer, sizes.buffer);
      run.frames[sent] = null;
      sent++;
      if (frames.length >= 24) break;
    }
    const finished = done && sent === run.frames.length;
    if (frames.length || finished || Date.now() - last > 100) {
      last = Date.now();
      self.postMessage({ id, kind: "frames", frames, events: run.events.slice(events), t: run.t, steps: run.steps, evaluations: run.evaluations, tokens: run.n, outcome: finished ? run.outcome : null }, moved);
      events = run.events.length;
    }
    if (finished) return;
    await pause();
    if (current !== id) return;
  }
}

const SCAN_SECONDS = 0.4;

// outcomes of a system at many values of one parameter, the middle first
async function scan({ id, systems }) {
  const order = systems.map((_, k) => k).sort((a, b) => (a % 4 ? 1 : 0) - (b % 4 ? 1 : 0) || (a % 2 ? 1 : 0) - (b % 2 ? 1 : 0) || a - b);
  for (const index of order) {
    const system = systems[index];
    let result;
    try {
      const run = new Integration(system, [0, system.until]), began = Date.now();
      while (!run.done && Date.now() - began < 1000 * SCAN_SECONDS) {
        run.advance(SLICE);
        await pause();
        if (current !== id) return;
      }
      const masses = new Float64Array(run.total).fill(1 / run.total), points = new Float64Array(run.total * run.d);
      for (let i = 0; i < run.total; i++) points.set(run.y.subarray(run.rowOf[i] * run.d, (run.rowOf[i] + 1) * run.d), i * run.d);
      const roots = findComponents(points, run.total, run.d), start = run.frames[0] ? run.frames[0].points : points;
      result = { index, clusters: countComponents(roots), n: run.total, growth: largestNorm(points, run.total, run.d) / largestNorm(start, run.total, run.d), t: run.t, done: run.done, rank: effectiveRank(points, masses, run.total, run.d) };
    } catch (error) {
      result = { index, error: error.message };
    }
    self.postMessage({ id, kind: "cell", ...result });
    await pause();
    if (current !== id) return;
  }
  self.postMessage({ id, kind: "scanned" });
}
