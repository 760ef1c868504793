// Animates the tokens; frames are decoded from compact arrays, which keeps the page small.
// attractorAnimation(root, data, isDark) fills the elements .tokens, .curves, .time, .play and .now of a root, and returns a function that repaints it and a promise.
window.attractorAnimation = function (root, data, isDark) {
  "use strict";
  const [tokens, curves, slider, play, now] = [".tokens", ".curves", ".time", ".play", ".now"].map((name) => root.querySelector(name));
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer;
  const grid = new Int16Array(bytes(data.coordinates)), leaders = new Uint16Array(bytes(data.leaders));
  const n = data.masses.length, dim = data.dim, count = data.labels.length;
  const total = data.masses.reduce((sum, mass) => sum + mass, 0);
  const looks = {
    light: { ink: "#1b1f24", quiet: "#56606c", hair: "#e3e8ee", rule: "#cdd5de", curve: "#0072b2",
      shell: "#c3cddb", lit: "#ffffff", ground: "#e6ebf2", grid: "#9fadbf", rim: "#ffffff" },
    dark: { ink: "#e9edf2", quiet: "#a3adba", hair: "#2b333d", rule: "#3b4653", curve: "#56b4e9",
      shell: "#1d2530", lit: "#4a5a70", ground: "#3a475a", grid: "#6d7f96", rim: "#12161c" },
  };
  let frame = 0, timer = null;

  // without WebGL the tokens of three dimensions are drawn as SVG, seen from where the camera starts
  const hasWebGL = () => { try { const canvas = document.createElement("canvas"); return Boolean(canvas.getContext("webgl2") || canvas.getContext("webgl")); } catch { return false; } };
  const flat = data.dim === 3 && !hasWebGL();

  const place = (at, token, axis) => data.centre[axis] + data.half * grid[(at * n + token) * dim + axis] / 32767;

  const dot = (a, b) => a.reduce((sum, value, axis) => sum + value * b[axis], 0);
  const times = (matrix, a) => matrix.map((row) => dot(row, a));
  const scaled = (a, factor) => a.map((value) => value * factor);
  const added = (a, b) => a.map((value, axis) => value + b[axis]);
  const unit = (a) => scaled(a, 1 / Math.hypot(...a));
  const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];

  // unit vectors to the right, up and to the eye
  function basis(camera) {
    const vector = (place) => [place.x, place.y, place.z];
    const eye = unit(added(vector(camera.eye), scaled(vector(camera.center), -1)));
    const right = unit(cross(vector(camera.up), eye));
    return [right, cross(eye, right), eye];
  }
  const sight = data.dim === 3 ? basis(data.figures.tokens.layout.scene.camera) : null;
  const flattened = (axes) => [0, 1].map((row) => Array.from(axes[0], (_, index) => dot(sight[row], axes.map((axis) => axis[index]))));
  // how far tokens are to the front: the sign of the normal on a surface, of the depth in a box
  const behind = (axes) => Array.from(axes[0], (_, index) => {
    const point = axes.map((axis, letter) => axis[index] - data.centre[letter]);
    return dot(sight[2], data.on_surface ? times(data.matrix, point) : point) < (data.on_surface ? 0 : -0.5 * data.half);
  });
  const numbers = (values) => (values && values.bdata
    ? Array.from(new { f4: Float32Array, f8: Float64Array, i1: Int8Array, i2: Int16Array, i4: Int32Array }[values.dtype](bytes(values.bdata))) : values.map((value) => (value === null ? NaN : value)));

  // the figure of the tokens without WebGL: outline, grid or box, trails and discs in the plane of the picture
  function stillFigure(figure) {
    const lines = (name, axes, more) => {
      const [x, y] = flattened(axes);
      return { type: "scatter", mode: "lines", name, x, y, hoverinfo: "skip", ...more };
    };
    const made = [], centre = flattened(data.centre.map((value) => [value])).map((value) => value[0]);
    let reach = Math.sqrt(3) * data.half;
    if (data.surface) {
      const spare = Math.abs(sight[2][2]) < 0.9 ? [0, 0, 1] : [1, 0, 0], line = unit(times(data.surface.root, sight[2]));
      const across = unit(cross(spare, line)), along = cross(line, across);
      const rim = Array.from({ length: 181 }, (_, step) => 2 * Math.PI * step / 180).map((turn) =>
        times(data.surface.inverse, added(scaled(across, Math.cos(turn)), scaled(along, Math.sin(turn)))));
      made.push(lines("outline", [0, 1, 2].map((axis) => rim.map((one) => one[axis])), { fill: "toself", line: { width: 1.5 } }));
      reach = 1.1 * data.half;
    } else {
      const ends = [-1, 1], corners = [[], [], []];
      for (let axis = 0; axis < 3; axis++) for (const a of ends) for (const b of ends) for (const c of [-1, 1, NaN]) {
        const corner = axis === 0 ? [c, a, b] : axis === 1 ? [a, c, b] : [a, b, c];
        corner.forEach((value, letter) => corners[letter].push(data.centre[letter] + data.half * value));
      }
      made.push(lines("grid", corners, { line: { width: 1 } }));
    }
    for (const trace of figure.data) {
      if (trace.name === "grid") made.push(lines("grid", [trace.x, trace.y, trace.z].map(numbers), { line: { width: 0.7 }, opacity: 0.6 }));
      if (trace.name === "trails") made.push({ type: "scatter", mode: "lines", name: "trails", x: [null], y: [null], line: { width: 1, color: "#9aa5b3" }, opacity: 0.6, hoverinfo: "skip" });
      if (trace.name === "tokens") made.push({ ...trace, type: "scatter", x: [], y: [], z: undefined, cliponaxis: false, marker: { ...trace.marker, line: { width: 0.8, color: "#ffffff" } } });
    }
    const axis = (middle) => ({ range: [middle - reach, middle + reach], visible: false, constrain: "domain" });
    const { scene, ...rest } = figure.layout;
    const words = { text: "A fixed view: this browser has no WebGL.", showarrow: false, xref: "paper", yref: "paper", x: 0, y: 0, xanchor: "left", yanchor: "bottom", font: { size: 12 } };
    return { data: made, layout: { ...rest, xaxis: axis(centre[0]), yaxis: { ...axis(centre[1]), scaleanchor: "x" }, annotations: [words], margin: { l: 10, r: 10, t: 10, b: 24 } } };
  }

  // a scene is scaled by the height of its place: in one that is higher than wide it would be cut off at the sides
  const ratio = data.dim === 3 ? data.figures.tokens.layout.scene.aspectratio.x : 1;
  const fitted = () => {
    const size = ratio * Math.min(1, tokens.clientWidth / Math.max(1, tokens.clientHeight));
    return { x: size, y: size, z: size };
  };

  function discs(at) {
    const share = new Float64Array(n), company = new Uint32Array(n);
    for (let token = 0; token < n; token++) {
      const leader = leaders[at * n + token];
      share[leader] += data.masses[token] / total;
      company[leader] += 1;
    }
    const size = [], custom = [], axes = Array.from({ length: dim }, () => new Float32Array(n));
    for (let token = 0; token < n; token++) {
      const own = company[token] > 0;
      size.push(own ? Math.max(data.full * Math.sqrt(share[token]), data.smallest) : 0);
      const words = company[token] > 1 ? `disc of ${company[token]} tokens, ${(100 * share[token]).toPrecision(3)}% of the mass` : "on its own";
      custom.push([data.tokens[token], data.masses[token], words]);
      for (let axis = 0; axis < dim; axis++) axes[axis][token] = place(at, token, axis);
    }
    if (dim === 1) axes.unshift(new Float64Array(n).fill(data.places[at]));
    return flat ? { axes: flattened(axes), size, custom, opacity: behind(axes).map((back) => (back ? 0.3 : 1)) } : { axes, size, custom };
  }

  function trails(at, sizes) {
    const points = data.trail_steps * data.fine + 1, length = points + 1;
    const axes = Array.from({ length: dim }, () => new Float32Array(data.trails.length * length));
    const pixel = data.half / (0.42 * Math.min(tokens.clientWidth, tokens.clientHeight));
    for (let step = 0; step < length; step++) {
      const then = Math.max(0, at - data.trail_steps + step / data.fine), below = Math.min(Math.floor(then), Math.max(count - 2, 0));
      const part = then - below, above = Math.min(below + 1, count - 1);
      data.trails.forEach((token, row) => {
        const middle = data.centre.map((_, axis) => (1 - part) * place(below, token, axis) + part * place(above, token, axis));
        // between saved times a trail follows the surface
        const stretch = data.on_surface ? Math.sqrt(Math.max(1e-12, dot(middle, times(data.matrix, middle)))) : 1;
        const trail = scaled(middle, 1 / stretch), head = data.centre.map((_, axis) => place(at, token, axis));
        // a trail stops at the rim of its disc
        const covered = Math.hypot(...added(trail, scaled(head, -1))) < pixel * sizes[leaders[at * n + token]] / 2;
        for (let axis = 0; axis < dim; axis++) axes[axis][row * length + step] = step === points || covered ? NaN : trail[axis];
      });
    }
    return flat ? flattened(axes) : axes;
  }

  // older parts approach the background colour, because WebGL adds up translucent lines
  function trailColours(ground) {
    const points = data.trail_steps * data.fine + 1, channels = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
    const base = channels(ground), colours = tokens.data[tokens.data.length - 1].marker.color;
    return data.trails.flatMap((token) => {
      const hue = channels(colours[token]);
      return Array.from({ length: points + 1 }, (_, step) => {
        const fresh = Math.min(0.05 + 0.75 * step / (points - 1), 0.8);
        return `rgb(${hue.map((value, channel) => Math.round(fresh * value + (1 - fresh) * base[channel])).join(",")})`;
      });
    });
  }

  function moveTokens(at) {
    const disc = discs(at), last = tokens.data.length - 1, trail = dim > 1 ? trails(at, disc.size) : null;
    const change = { "marker.size": [], customdata: [] };
    const letters = ["x", "y", "z"].slice(0, disc.axes.length);
    letters.forEach((letter, axis) => { change[letter] = trail ? [trail[axis], disc.axes[axis]] : [disc.axes[axis]]; });
    change["marker.size"] = trail ? [null, disc.size] : [disc.size];
    change.customdata = trail ? [null, disc.custom] : [disc.custom];
    if (flat) change["marker.opacity"] = trail ? [null, disc.opacity] : [disc.opacity];
    return Plotly.restyle(tokens, change, trail ? [last - 1, last] : [last]);
  }

  // Turns the lens to the viewer. On the unit sphere, u = W^(1/2) x, it is the disc across the line of sight; the front of the surface
  // lies above each of its points on the same line of sight, and its normal W x gives the light.
  function turnLens(camera) {
    const { root, inverse, lens, light } = data.surface, [right, up, eye] = basis(camera);
    const line = unit(times(root, eye)), spare = Math.abs(line[2]) < 0.9 ? [0, 0, 1] : [1, 0, 0];
    const across = unit(cross(spare, line)), along = cross(line, across);
    const change = { x: [[]], y: [[]], z: [[]], intensity: [[]] };
    for (const [a, b] of lens) {
      const middle = added(scaled(across, a), scaled(along, b));
      const place = times(inverse, middle), front = added(middle, scaled(line, Math.sqrt(Math.max(0, 1 - a * a - b * b))));
      const normal = unit(times(root, front));
      ["x", "y", "z"].forEach((letter, axis) => change[letter][0].push(place[axis]));
      change.intensity[0].push(Math.max(0, dot(light, [dot(normal, right), dot(normal, up), dot(normal, eye)])) ** 0.8);
    }
    return Plotly.restyle(tokens, change, [tokens.data.findIndex((trace) => trace.name === "lens")]);
  }

  let turning = false;
  function turned(event) {
    const part = Object.keys(event).some((key) => key.startsWith("scene.camera"));
    const camera = event["scene.camera"] || (part ? tokens.layout.scene.camera : null);
    if (!camera || turning) return;
    turning = true;
    // an update reads the camera from the layout; without this line it would reset a rotation in progress
    tokens.layout.scene.camera = camera;
    turnLens(camera).then(() => { turning = false; });
  }

  function moveMarker(at) {
    if (!data.strips) return null;
    const dots = data.values.map((_, curve) => data.values.length + curve);
    const where = { x: dots.map(() => [data.places[at]]), y: data.values.map((values) => [values[at]]) };
    const line = { "shapes[0].x0": data.places[at], "shapes[0].x1": data.places[at] };
    return dots.length ? Plotly.update(curves, where, line, dots) : Plotly.relayout(curves, line);
  }

  function show(at) {
    frame = Math.min(Math.max(at, 0), count - 1);
    slider.value = String(frame);
    slider.setAttribute("aria-valuetext", data.labels[frame]);
    now.textContent = data.labels[frame];
    return Promise.all([moveTokens(frame), moveMarker(frame)]);
  }

  function stop() {
    if (timer !== null) window.clearTimeout(timer);
    timer = null;
    play.innerHTML = '<span aria-hidden="true">▶</span> Play';
    play.setAttribute("aria-pressed", "false");
  }

  function step() {
    if (frame >= count - 1) return stop();
    const began = performance.now();
    // the next frame waits until the last one is drawn, for slow machines
    show(frame + 1).then(() => { if (timer !== null) timer = window.setTimeout(step, Math.max(0, data.pause - (performance.now() - began))); });
  }

  function start() {
    if (frame >= count - 1) frame = -1;
    play.innerHTML = '<span aria-hidden="true">❚❚</span> Pause';
    play.setAttribute("aria-pressed", "true");
    timer = window.setTimeout(step, 0);
  }

  function paint() {
    const look = isDark() ? looks.dark : looks.light;
    const axes = (layout) => Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));
    const colours = (layout) => Object.fromEntries(axes(layout).flatMap((key) => [[key + ".gridcolor", look.hair], [key + ".color", look.quiet]]));
    const change = { "font.color": look.ink, "modebar.color": look.quiet, "modebar.activecolor": look.ink, ...colours(tokens.layout) };
    if (tokens.layout.scene) for (const axis of ["xaxis", "yaxis", "zaxis"]) {
      change[`scene.${axis}.gridcolor`] = look.rule;
      change[`scene.${axis}.color`] = look.quiet;
    }
    if (flat) change["annotations[0].font.color"] = look.quiet;
    Plotly.relayout(tokens, change);
    tokens.data.forEach((trace, index) => {
      if (trace.name === "lens") Plotly.restyle(tokens, { colorscale: [[[0, look.shell], [1, look.lit]]] }, [index]);
      if (trace.name === "outline") Plotly.restyle(tokens, { fillcolor: look.ground, "line.color": look.grid }, [index]);
      if (trace.name === "grid") Plotly.restyle(tokens, { "line.color": look.grid }, [index]);
      if (trace.name === "trails" && dim === 3 && !flat) Plotly.restyle(tokens, { "line.color": [trailColours(look.ground)] }, [index]);
      if (trace.name === "tokens") Plotly.restyle(tokens, { "marker.line.color": look.rim }, [index]);
    });
    if (!data.strips) return;
    Plotly.relayout(curves, { "font.color": look.ink, ...colours(curves.layout) });
    const lines = data.values.map((_, curve) => curve);
    if (lines.length) Plotly.restyle(curves, { "line.color": look.curve }, lines);
  }

  function jump(event) {
    const at = event.points[0].x;
    let best = 0;
    data.places.forEach((value, index) => { if (Math.abs(value - at) < Math.abs(data.places[best] - at)) best = index; });
    stop();
    show(best);
  }

  // disable uploads to the plotly cloud
  const config = { responsive: true, displaylogo: false, scrollZoom: "gl3d", showSendToCloud: false, plotlyServerURL: "",
    modeBarButtons: [dim === 3 && !flat ? ["toImage", "orbitRotation", "pan3d", "resetCameraDefault3d"] : ["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
  const figure = flat ? stillFigure(data.figures.tokens) : data.figures.tokens;
  if (dim === 3 && !flat) {
    figure.layout.scene.aspectratio = fitted();
    window.addEventListener("resize", () => Plotly.relayout(tokens, { "scene.aspectratio": fitted() }));
  }
  const drawn = [Plotly.newPlot(tokens, figure.data, figure.layout, config)];
  if (data.strips) drawn.push(Plotly.newPlot(curves, data.figures.curves.data, data.figures.curves.layout, { ...config, displayModeBar: false }));
  slider.max = String(count - 1);
  const ready = Promise.all(drawn).then(() => {
    paint();
    // screen readers get the label of the figure instead of its letters and ticks
    root.querySelectorAll(".main-svg, .gl-container").forEach((part) => part.setAttribute("aria-hidden", "true"));
    slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
    play.addEventListener("click", () => (timer === null ? start() : stop()));
    if (data.strips) curves.on("plotly_click", jump);
    if (data.surface && !flat) {
      turnLens(tokens.layout.scene.camera);
      tokens.on("plotly_relayouting", turned);
      tokens.on("plotly_relayout", turned);
    }
    return show(0);
  });
  return { paint, ready };
};
