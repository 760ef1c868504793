// Integrates systems from a JSON file with the page's integrator: node integrate.js NUMERICS.js INPUT.json
"use strict";
const [, , source, input] = process.argv;
const numerics = require(source), { tableau, runs } = JSON.parse(require("fs").readFileSync(input, "utf8"));
numerics.setTableau(tableau);
const results = runs.map(({ system, times }) => {
  const run = new numerics.Integration(system, times);
  run.advance();
  const start = Array.from(numerics.drawStart(system.start, system.dim));
  return { start, frames: run.frames.map(({ t, points, clusters }) => ({ t, clusters, points: Array.from(points) })), events: run.events, outcome: run.outcome, steps: run.steps };
});
process.stdout.write(JSON.stringify(results));
