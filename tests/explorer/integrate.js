// Integrates systems with the page's scripts: node integrate.js FOLDER < {"tableau": ..., "runs": [{system, times}]}
"use strict";
const fs = require("fs"), path = require("path"), page = { exports: {} };
for (const name of ["random.js", "numerics.js", "theory.js", "export.js"]) page[name] = fs.readFileSync(path.join(process.argv[2], name), "utf8");
new Function("module", ["random.js", "numerics.js", "theory.js", "export.js"].map((name) => page[name]).join("\n"))(page);
const { drawStart, setTableau, Integration, completeSystem, writeCommand, writePython, predictFates, TITLES, sectionOf } = page.exports;
const { tableau, runs } = JSON.parse(fs.readFileSync(0, "utf8"));
setTableau(tableau);
const results = runs.map(({ system, times, complete }) => {
  if (complete) system = completeSystem(system);
  const start = drawStart(system.start, system.dim), run = new Integration(system, times);
  run.advance();
  const masses = new Float64Array(run.total).fill(1 / run.total);
  return {
    system, start: Array.from(start), frames: run.frames.map(({ t, points, clusters }) => ({ t, clusters, points: Array.from(points) })), events: run.events, outcome: run.outcome, steps: run.steps,
    ...(complete ? { command: system.pinned ? null : writeCommand(system), python: writePython(system), theorems: predictFates(system, start, masses), sections: Object.keys(TITLES).map(sectionOf), titles: TITLES } : {}),
  };
});
process.stdout.write(JSON.stringify(results));
