// Files, exports, and the start of the page.
"use strict";

async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without permission, by a selection
    const area = make("textarea", {});
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  document.documentElement.dataset.copied = text.slice(0, 200000);
  notify(`${what} copied.`);
}

// the description without what only pictures need
function portable(system) {
  const out = structuredClone(system);
  delete out.view;
  return out;
}

function dataOfRun() {
  const { run } = state;
  return {
    schema: "attractor.explorer/1", system: portable(run.system), times: Array.from(run.times.slice(0, run.frames.length)),
    points: run.frames.map((frame) => Array.from({ length: run.n }, (_, i) => Array.from(frame.points.subarray(i * run.d, (i + 1) * run.d)))),
    curves: Object.fromEntries(CURVES.map(({ key }) => [key, run.curves.map((curve) => (Number.isFinite(curve[key]) ? curve[key] : null))])), events: run.events, outcome: run.outcome,
  };
}

const EXPORTS = {
  link: async () => { const address = new URL(location.href); address.hash = await currentAddress(); address.search = ""; await copyText(address.href, "Link"); },
  open: () => $("file").click(),
  command: () => copyText(writeCommand(portable(state.system)), "Command"),
  python: () => copyText(writePython(portable(state.system)), "Python"),
  svg: () => saveBlob(new Blob([scene.toSVG(view(), $("caption").textContent)], { type: "image/svg+xml" }), "attractor.svg"),
  png: () => { drawScene(); flattened().toBlob((blob) => saveBlob(blob, "attractor.png"), "image/png"); },
  webm: () => record(),
  json: () => saveBlob(new Blob([JSON.stringify(dataOfRun())], { type: "application/json" }), "attractor.json"),
};

// both layers of the picture on one canvas
function flattened(canvas = make("canvas")) {
  const over = $("scene");
  if (canvas.width !== over.width || canvas.height !== over.height) { canvas.width = over.width; canvas.height = over.height; }
  const context = canvas.getContext("2d");
  context.drawImage($("globe"), 0, 0);
  context.drawImage(over, 0, 0);
  return canvas;
}

// play the run once from its start and keep what is drawn
function record() {
  const canvas = flattened();
  if (!canvas.captureStream || typeof MediaRecorder === "undefined") return notify("This browser cannot record films.");
  const kind = ["video/webm;codecs=vp9", "video/webm;codecs=vp8", "video/webm"].find((name) => MediaRecorder.isTypeSupported(name));
  if (!kind) return notify("This browser cannot record WebM.");
  const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: kind, videoBitsPerSecond: 6e6 }), parts = [];
  recorder.ondataavailable = ({ data }) => data.size && parts.push(data);
  recorder.onstop = () => { saveBlob(new Blob(parts, { type: "video/webm" }), "attractor.webm"); notify("Film saved."); };
  state.at = 0;
  setPlaying(true);
  recorder.start();
  const copy = () => { flattened(canvas); if (recorder.state === "recording") requestAnimationFrame(copy); };
  copy();
  notify("Recording until the end of the run.");
  const watch = setInterval(() => { if (!state.playing) { clearInterval(watch); recorder.stop(); } }, 100);
}

async function readFile(file) {
  try {
    if (file.size > 64 * 1024 * 1024) throw new Error("the file is larger than 64 MB");
    const document = JSON.parse(await file.text()), schema = String(document.schema || "");
    if (schema.startsWith("attractor.explorer/") || schema === SCHEMA) { openState({ system: document.system || document }, null); return notify(`${file.name} opened.`); }
    if (typeof openModelFile === "function" && (await openModelFile(document, file.name))) return;
    throw new Error(schema ? `the page does not read ${schema}` : "it has no schema of attractor");
  } catch (error) {
    notify(`${file.name} cannot be opened: ${error.message}`);
  }
}

function listenToFiles() {
  $("file").addEventListener("change", () => { if ($("file").files[0]) readFile($("file").files[0]); $("file").value = ""; });
  let depth = 0;
  addEventListener("dragenter", (event) => { if (event.dataTransfer && [...event.dataTransfer.types].includes("Files")) { depth++; $("drop").hidden = false; } });
  addEventListener("dragleave", () => { depth = Math.max(0, depth - 1); if (!depth) $("drop").hidden = true; });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); depth = 0; $("drop").hidden = true; const file = event.dataTransfer?.files?.[0]; if (file) readFile(file); });
}

function listenToButtons() {
  $("play").addEventListener("click", () => setPlaying(!state.playing));
  $("restart").addEventListener("click", restart);
  $("time").addEventListener("input", () => goTo(Number($("time").value)));
  $("speed").addEventListener("change", () => { state.speed = Number($("speed").value); });
  $("clock").addEventListener("change", () => { state.clock = $("clock").value; change(() => {}); });
  for (const name of ["trails", "arcs"]) $(name).addEventListener("click", () => { state[name] = !state[name]; $(name).setAttribute("aria-pressed", String(state[name])); if (name === "arcs" && state.arcs && state.selected < 0) notify("Point at a token, or click it, to see whom it attends to."); invalidate(); });
  $("camera").addEventListener("click", () => { if (state.run) scene.camera.reset(state.run.d); invalidate(); });
  const menu = $("export-menu"), opener = $("export"), openMenu = (on) => { menu.hidden = !on; opener.setAttribute("aria-expanded", String(on)); if (on) menu.querySelector("button").focus(); };
  opener.addEventListener("click", () => openMenu(menu.hidden));
  menu.addEventListener("keydown", (event) => {
    const items = [...menu.querySelectorAll("button")], index = items.indexOf(document.activeElement), way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (way) { event.preventDefault(); items[(index + way + items.length) % items.length].focus(); }
    if (event.key === "Escape") { openMenu(false); opener.focus(); }
  });
  menu.addEventListener("click", async (event) => {
    const what = event.target.dataset.export;
    if (!what) return;
    openMenu(false);
    opener.focus();
    try { await EXPORTS[what](); } catch (error) { notify(error.message); }
  });
  addEventListener("click", (event) => { if (!menu.hidden && !event.target.closest(".menu")) openMenu(false); });
  $("help").addEventListener("click", () => $("guide").showModal());
  $("close").addEventListener("click", () => $("guide").close());
  $("theme").addEventListener("click", () => { setTheme(!isDark()); try { localStorage.setItem("attractor-theme", isDark() ? "dark" : "light"); } catch { /* not kept */ } updatePanels(); drawMarks(); });
}

function begin() {
  let kept = null;
  try { kept = localStorage.getItem("attractor-theme"); } catch { /* not kept */ }
  setTheme(kept ? kept === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches);
  buildPresets();
  buildPanels();
  listenToPointer();
  listenToKeys();
  listenToButtons();
  listenToFiles();
  new ResizeObserver(() => { resizeScene(); drawMarks(); updatePanels(); }).observe($("stage"));
  addEventListener("scroll", () => { if (!state.playing) updatePanels(); }, { passive: true });
  addEventListener("hashchange", openAddress);
  resizeScene();
  openAddress().then((opened) => { if (!opened && !state.system) openState(DATA.presets[0], DATA.presets[0]); });
  requestAnimationFrame(tick);
  if (SERVER !== null && typeof startServer === "function") startServer();
}

begin();
