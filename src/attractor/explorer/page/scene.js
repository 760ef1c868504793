// Draws tokens, trails and arcs: by WebGL2, or as circles and lines where there is none (and for SVG).
"use strict";

const TRAIL = 36;

// colours of equal lightness around the wheel, as sRGB in [0, 1]
function wheelColour(turn, light, chroma) {
  const a = chroma * Math.cos(2 * Math.PI * turn), b = chroma * Math.sin(2 * Math.PI * turn);
  const [l, m, s] = [light + 0.3963377774 * a + 0.2158037573 * b, light - 0.1055613458 * a - 0.0638541728 * b, light - 0.0894841775 * a - 1.291485548 * b].map((x) => x ** 3);
  const linear = [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s, -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s];
  return linear.map((x) => { const v = Math.min(1, Math.max(0, x)); return v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055; });
}

const cssColour = (rgb, alpha = 1) => `rgba(${rgb.map((x) => Math.round(255 * x)).join(",")},${alpha})`;
const hexColour = (rgb) => `#${rgb.map((x) => Math.round(255 * x).toString(16).padStart(2, "0")).join("")}`;
const parseHex = (text) => [1, 3, 5].map((k) => parseInt(text.slice(k, k + 2), 16) / 255);

// by order in the sequence under a mask, by direction of the start otherwise
function tokenColours(points, n, d, ordered, dark) {
  const out = new Float32Array(4 * n);
  for (let i = 0; i < n; i++) {
    const turn = ordered ? 0.72 - 0.62 * (n > 1 ? i / (n - 1) : 0) : Math.atan2(points[i * d + 1] || 0, points[i * d]) / (2 * Math.PI) + 0.08;
    const height = d > 2 && !ordered ? points[i * d + 2] / (Math.hypot(...points.subarray(i * d, i * d + 3)) || 1) : 0;
    out.set([...wheelColour(turn, (dark ? 0.76 : 0.6) + 0.07 * height, dark ? 0.135 : 0.15), 1], 4 * i);
  }
  return out;
}

class Camera {
  constructor() {
    this.reset(3);
  }

  reset(d) {
    this.flat = d === 2;
    this.yaw = this.flat ? 0 : 0.7;
    this.pitch = this.flat ? 0 : 0.42;
    this.zoom = 1;
  }

  // rows: right, up, to the eye
  get rotation() {
    if (this.flat) return [1, 0, 0, 0, 1, 0, 0, 0, 1];
    const cy = Math.cos(this.yaw), sy = Math.sin(this.yaw), cp = Math.cos(this.pitch), sp = Math.sin(this.pitch);
    return [-sy, cy, 0, -sp * cy, -sp * sy, cp, cp * cy, cp * sy, sp];
  }

  turn(dx, dy) {
    if (this.flat) return;
    this.yaw -= dx;
    this.pitch = Math.min(1.55, Math.max(-1.55, this.pitch + dy));
  }
}

const POINTS = `#version 300 es
precision highp float; precision highp sampler2D;
uniform sampler2D frames, colours; uniform mat3 turn; uniform vec2 scale; uniform float at, count, size, swell, solid, dim, chosen, radius; uniform vec3 back;
out vec3 tint; out float depth, ring;
vec4 place(float f, int token) {
  float g = clamp(f, 0.0, count - 1.0); int k = int(floor(g)); int m = min(k + 1, int(count) - 1); float w = g - float(k);
  vec4 a = texelFetch(frames, ivec2(token, k), 0), b = texelFetch(frames, ivec2(token, m), 0), c = mix(a, b, w);
  float la = length(a.xyz), lb = length(b.xyz), lc = length(c.xyz);
  if (lc > 1e-9) c.xyz *= mix(la, lb, w) / lc;
  return c;
}
void main() {
  vec4 here = place(at, gl_VertexID); vec3 p = turn * here.xyz;
  depth = solid > 0.5 ? clamp(p.z / radius, -1.0, 1.0) : 0.0;
  vec3 colour = texelFetch(colours, ivec2(gl_VertexID, 0), 0).rgb;
  float behind = solid > 0.5 ? smoothstep(-0.05, -0.9, depth) * 0.8 : 0.0;
  tint = mix(colour, back, behind);
  ring = float(gl_VertexID) == chosen ? 1.0 : 0.0;
  gl_Position = vec4(p.xy * scale, -p.z / (4.0 * radius), 1.0);
  gl_PointSize = (size + swell * sqrt(max(here.w, 0.0))) * (1.0 + 0.16 * depth) * (ring > 0.5 ? 1.4 : 1.0);
}`;
const POINT_PIXELS = `#version 300 es
precision highp float; in vec3 tint; in float depth, ring; uniform vec3 edge, mark; out vec4 pixel;
void main() {
  vec2 q = 2.0 * gl_PointCoord - 1.0; float r = length(q), soft = fwidth(r); if (r > 1.0) discard;
  float shine = 1.0 - smoothstep(0.0, 1.15, length(q - vec2(-0.32, -0.36)));
  vec3 colour = tint * (0.86 + 0.14 * (1.0 - r)) + 0.22 * shine * shine;
  float rim = smoothstep(0.80 - soft, 0.84, r);
  colour = mix(colour, ring > 0.5 ? mark : edge, rim * (ring > 0.5 ? 1.0 : 0.75));
  pixel = vec4(colour, 1.0 - smoothstep(1.0 - 1.5 * soft, 1.0, r));
}`;
const TRAILS = POINTS.slice(0, POINTS.indexOf("void main")) .replace("out vec3 tint;", "uniform float span, width, parts, aspect; out float age, across; out vec3 tint;") + `
void main() {
  int token = gl_InstanceID; float k = float(gl_VertexID / 2), side = float(gl_VertexID % 2) * 2.0 - 1.0;
  float step = span / parts; vec3 p = turn * place(at - k * step, token).xyz, q = turn * place(at - (k + 1.0) * step, token).xyz;
  vec2 way = (p.xy - q.xy) * scale * vec2(aspect, 1.0); float len = length(way);
  vec2 normal = len > 1e-9 ? vec2(-way.y, way.x) / len : vec2(0.0);
  across = side; age = k / parts; depth = solid > 0.5 ? clamp(p.z / radius, -1.0, 1.0) : 0.0; ring = float(token) == chosen ? 1.0 : 0.0;
  tint = texelFetch(colours, ivec2(token, 0), 0).rgb;
  gl_Position = vec4(p.xy * scale + side * normal * width * (ring > 0.5 ? 1.6 : 1.0) * (1.0 - 0.75 * age) / vec2(aspect, 1.0), -p.z / (4.0 * radius), 1.0);
}`;
const TRAIL_PIXELS = `#version 300 es
precision highp float; in vec3 tint; in float depth, age, ring, across; uniform vec3 back; uniform float strength; out vec4 pixel;
void main() { float behind = smoothstep(-0.05, -0.9, depth) * 0.85; pixel = vec4(mix(tint, back, behind), (1.0 - age) * (strength + 0.3 * ring) * (1.0 - 0.7 * behind) * (1.0 - smoothstep(0.45, 1.0, abs(across)))); }`;
const LINES = `#version 300 es
precision highp float; layout(location=0) in vec3 corner; layout(location=1) in vec4 colour; out vec4 tint; out float across;
void main() { tint = colour; across = corner.z; gl_Position = vec4(corner.xy, 0.0, 1.0); }`;
const LINE_PIXELS = `#version 300 es
precision highp float; in vec4 tint; in float across; out vec4 pixel;
void main() { pixel = vec4(tint.rgb, tint.a * (1.0 - smoothstep(0.5, 1.0, abs(across)))); }`;

// WebGL in software is slower than circles on a plain canvas; ?webgl takes it all the same
function hasFastWebGL() {
  if (new URLSearchParams(location.search).has("webgl")) return true;
  const probe = document.createElement("canvas").getContext("webgl2", { failIfMajorPerformanceCaveat: true });
  if (!probe) return false;
  const names = probe.getExtension("WEBGL_debug_renderer_info"), name = names ? probe.getParameter(names.UNMASKED_RENDERER_WEBGL) : "";
  probe.getExtension("WEBGL_lose_context")?.loseContext();
  return !/swiftshader|llvmpipe|software|basic render/i.test(name);
}

class Scene {
  constructor(canvas, ground) {
    this.canvas = canvas;
    this.ground = ground;
    this.camera = new Camera();
    this.looks = {};
    this.gl = null;
    const options = { antialias: false, depth: true, alpha: true, premultipliedAlpha: false, preserveDrawingBuffer: true };
    try { if (hasFastWebGL()) this.gl = canvas.getContext("webgl2", options); } catch { /* drawn as circles instead */ }
    if (this.gl) {
      this.prepare();
      canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
      canvas.addEventListener("webglcontextrestored", () => { this.prepare(); this.reload(); });
    } else this.context = canvas.getContext("2d");
    this.n = this.d = this.count = 0;
  }

  program(vertex, fragment) {
    const gl = this.gl, program = gl.createProgram();
    for (const [type, text] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
      const shader = gl.createShader(type);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS) && !gl.isContextLost()) throw new Error(gl.getShaderInfoLog(shader));
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    const places = {};
    return { program, at: (name) => (places[name] = name in places ? places[name] : gl.getUniformLocation(program, name)) };
  }

  prepare() {
    const gl = this.gl;
    this.points = this.program(POINTS, POINT_PIXELS);
    this.trails = this.program(TRAILS, TRAIL_PIXELS);
    this.lines = this.program(LINES, LINE_PIXELS);
    this.frames = gl.createTexture();
    this.colours = gl.createTexture();
    this.empty = gl.createVertexArray();
    this.lineArray = gl.createVertexArray();
    this.lineBuffer = gl.createBuffer();
    gl.bindVertexArray(this.lineArray);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.lineBuffer);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 3, gl.FLOAT, false, 28, 0);
    gl.enableVertexAttribArray(1);
    gl.vertexAttribPointer(1, 4, gl.FLOAT, false, 28, 12);
    gl.bindVertexArray(null);
    gl.enable(gl.BLEND);
    gl.blendFuncSeparate(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA, gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  // a new run: room for all frames; kind is "sphere", "ellipsoid" or "euclidean"
  begin(run, kind, root) {
    Object.assign(this, { run, n: run.n, d: run.d, count: 0, kind, root });
    if (!this.gl) return;
    const gl = this.gl;
    for (const [texture, width, height] of [[this.frames, run.n, run.times.length], [this.colours, run.n, 1]]) {
      gl.bindTexture(gl.TEXTURE_2D, texture);
      gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA32F, width, height, 0, gl.RGBA, gl.FLOAT, null);
      for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
    }
  }

  reload() {
    const count = this.count;
    this.begin(this.run, this.kind, this.root);
    this.paint(this.palette);
    this.extend(count);
  }

  paint(colours) {
    this.palette = colours;
    if (!this.gl) return;
    const gl = this.gl;
    gl.bindTexture(gl.TEXTURE_2D, this.colours);
    gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, 0, this.n, 1, gl.RGBA, gl.FLOAT, colours);
  }

  // upload frames up to a number
  extend(to) {
    if (this.gl && to > this.count) {
      const gl = this.gl, { n, d } = this, data = new Float32Array(4 * n * (to - this.count));
      for (let k = this.count; k < to; k++) {
        const frame = this.run.frames[k], o = 4 * n * (k - this.count);
        for (let i = 0; i < n; i++) {
          for (let a = 0; a < Math.min(3, d); a++) data[o + 4 * i + a] = frame.drawn[i * d + a];
          data[o + 4 * i + 3] = frame.sizes ? frame.sizes[i] : 0;
        }
      }
      gl.bindTexture(gl.TEXTURE_2D, this.frames);
      gl.texSubImage2D(gl.TEXTURE_2D, 0, 0, this.count, n, to - this.count, gl.RGBA, gl.FLOAT, data);
    }
    this.count = to;
  }

  // points (n, 3) that are shown at a frame coordinate
  placesAt(at) {
    const { n, d, run } = this, g = Math.min(Math.max(at, 0), this.count - 1), k = Math.floor(g), m = Math.min(k + 1, this.count - 1), w = g - k;
    const a = run.frames[k].drawn, b = run.frames[m].drawn, out = new Float64Array(3 * n);
    for (let i = 0; i < n; i++) {
      let la = 0, lb = 0, lc = 0;
      for (let c = 0; c < Math.min(3, d); c++) {
        const x = a[i * d + c], y = b[i * d + c], z = x + w * (y - x);
        out[3 * i + c] = z;
        la += x * x; lb += y * y; lc += z * z;
      }
      if (lc > 1e-18) { const f = (Math.sqrt(la) + w * (Math.sqrt(lb) - Math.sqrt(la))) / Math.sqrt(lc); for (let c = 0; c < 3; c++) out[3 * i + c] *= f; }
    }
    return out;
  }

  get solid() {
    return this.kind !== "euclidean" && this.d > 2;
  }

  // half of the length that fits into the smaller side of the canvas
  extentAt(at) {
    if (this.kind === "sphere") return 1.16;
    if (this.kind === "ellipsoid") return 1.14 * Math.max(...symmetricEigen(this.root, this.d).values.map((value) => 1 / value));
    const size = (k) => this.run.frames[Math.min(Math.max(k, 0), this.count - 1)].reach;
    const k = Math.floor(at), w = at - k;
    return 1.25 * Math.max(1e-9, size(k) ** (1 - w) * size(k + 1) ** w);
  }

  project(view) {
    const { width, height } = this.canvas, small = Math.min(width, height), extent = this.extentAt(view.at);
    const unit = (small / 2 / extent) * this.camera.zoom;
    return { unit, extent, width, height, rotation: this.camera.rotation };
  }

  // pixels (x, y) and depth of a point
  toPixels(point, p) {
    const r = p.rotation, x = r[0] * point[0] + r[1] * point[1] + r[2] * point[2], y = r[3] * point[0] + r[4] * point[1] + r[5] * point[2], z = r[6] * point[0] + r[7] * point[1] + r[8] * point[2];
    return [p.width / 2 + p.unit * x, p.height / 2 - p.unit * y, z];
  }

  // the point of the space under a pixel, near a depth in flat space
  fromPixels(x, y, view, depth = 0) {
    const p = this.project(view), r = p.rotation;
    let u = (x - p.width / 2) / p.unit, v = (p.height / 2 - y) / p.unit, w = depth;
    if (this.solid) {
      // on the ellipsoid |S (R' q)| = 1 for q = (u, v, w)
      const S = this.root || identity(3), apply = (q) => {
        const x3 = [0, 1, 2].map((c) => r[c] * q[0] + r[3 + c] * q[1] + r[6 + c] * q[2]);
        return [0, 1, 2].map((row) => S[row * 3] * x3[0] + S[row * 3 + 1] * x3[1] + S[row * 3 + 2] * x3[2]);
      };
      const a = apply([0, 0, 1]), b = apply([u, v, 0]), A = a.reduce((s, q) => s + q * q, 0), B = a.reduce((s, q, k) => s + q * b[k], 0), C = b.reduce((s, q) => s + q * q, 0) - 1;
      const inside = B * B - A * C;
      w = inside > 0 ? (-B + (depth < 0 ? -1 : 1) * Math.sqrt(inside)) / A : -B / A;
    }
    const out = [0, 1, 2].map((c) => r[c] * u + r[3 + c] * v + r[6 + c] * w);
    return out.slice(0, Math.min(3, this.d));
  }

  // diameter in pixels of a token in a cluster of some mass
  size(n, mass = 0) {
    return (Math.max(5.5, Math.min(14, 84 / Math.sqrt(n))) + 31 * Math.sqrt(mass)) * (Math.min(this.canvas.width, this.canvas.height) / 620) ** 0.6 * 1.15;
  }

  draw(view) {
    if (!this.run || !this.count) return;
    this.drawGround(view);
    if (!this.gl) return this.drawFlat(view);
    const gl = this.gl, p = this.project(view), { looks } = this, turn = transpose(Float64Array.from(p.rotation), 3, 3);
    const scale = [(2 * p.unit) / p.width, (2 * p.unit) / p.height], back = looks.shell, radius = this.kind === "euclidean" ? p.extent * 4 : p.extent;
    gl.viewport(0, 0, p.width, p.height);
    gl.clearColor(...looks.ground, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.disable(gl.DEPTH_TEST);
    this.drawLines(view.lines || [], p);
    const common = (program) => {
      gl.useProgram(program.program);
      gl.activeTexture(gl.TEXTURE0); gl.bindTexture(gl.TEXTURE_2D, this.frames);
      gl.activeTexture(gl.TEXTURE1); gl.bindTexture(gl.TEXTURE_2D, this.colours);
      gl.activeTexture(gl.TEXTURE0);
      gl.uniform1i(program.at("frames"), 0); gl.uniform1i(program.at("colours"), 1);
      gl.uniformMatrix3fv(program.at("turn"), false, turn);
      gl.uniform2fv(program.at("scale"), scale);
      for (const [name, value] of Object.entries({ at: view.at, count: this.count, solid: this.solid ? 1 : 0, chosen: view.selected ?? -1, radius })) gl.uniform1f(program.at(name), value);
      gl.uniform3fv(program.at("back"), back);
      gl.bindVertexArray(this.empty);
    };
    if (view.trails) {
      common(this.trails);
      const span = Math.min(view.trails, view.at);
      for (const [name, value] of Object.entries({ span, parts: TRAIL, width: (this.size(this.n) * 0.42) / p.height, aspect: p.width / p.height, strength: looks.trail })) gl.uniform1f(this.trails.at(name), value);
      if (span > 0) gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 2 * TRAIL + 2, this.n);
    }
    this.drawLines(view.arcs || [], p);
    common(this.points);
    gl.uniform1f(this.points.at("size"), this.size(this.n));
    gl.uniform1f(this.points.at("swell"), this.size(this.n, 1) - this.size(this.n));
    gl.uniform3fv(this.points.at("edge"), looks.edge);
    gl.uniform3fv(this.points.at("mark"), looks.ink);
    gl.enable(gl.DEPTH_TEST);
    gl.depthFunc(gl.LEQUAL);
    gl.drawArrays(gl.POINTS, 0, this.n);
    gl.disable(gl.DEPTH_TEST);
  }

  // what does not move with time lies on a canvas below: the globe, the circle, the grid of flat space
  drawGround(view) {
    const p = this.project(view), { looks } = this, key = JSON.stringify([p, looks, this.kind, this.root && Array.from(this.root), this.d]);
    if (key === this.groundKey) return;
    this.groundKey = key;
    this.ground.width = p.width;
    this.ground.height = p.height;
    const context = this.ground.getContext("2d");
    context.fillStyle = cssColour(looks.ground);
    context.fillRect(0, 0, p.width, p.height);
    if (this.solid) {
      const hull = this.silhouette(p), xs = hull.map(([x]) => x), ys = hull.map(([, y]) => y), x = Math.min(...xs), y = Math.min(...ys), w = Math.max(...xs) - x, h = Math.max(...ys) - y;
      const shade = context.createRadialGradient(x + 0.36 * w, y + 0.3 * h, 0, x + 0.44 * w, y + 0.42 * h, 0.66 * Math.max(w, h));
      shade.addColorStop(0, cssColour(looks.lit));
      shade.addColorStop(1, cssColour(looks.shell));
      context.beginPath();
      hull.forEach(([u, v], k) => (k ? context.lineTo(u, v) : context.moveTo(u, v)));
      context.closePath();
      context.fillStyle = shade;
      context.fill();
      this.strokeGraticule(context, p);
    }
    for (const { points, colour, width } of this.outline(p)) {
      context.beginPath();
      points.forEach((point, k) => { const [u, v] = this.toPixels(point, p); if (k) context.lineTo(u, v); else context.moveTo(u, v); });
      context.strokeStyle = cssColour(colour.slice(0, 3), colour[3]);
      context.lineWidth = width * (this.canvas.ratio || 1);
      context.stroke();
    }
  }

  // meridians and parallels, those behind fainter
  strokeGraticule(context, p) {
    const inverse = this.root ? matrixInverse3(this.root) : identity(3), extent = p.extent;
    const at = (u, v) => { const y = [Math.sin(v) * Math.cos(u), Math.sin(v) * Math.sin(u), Math.cos(v)]; return this.toPixels([0, 1, 2].map((row) => inverse[row * 3] * y[0] + inverse[row * 3 + 1] * y[1] + inverse[row * 3 + 2] * y[2]), p); };
    const curves = [], turn = (k, steps) => (2 * Math.PI * k) / steps;
    for (let k = 1; k < 6; k++) curves.push(Array.from({ length: 97 }, (_, i) => at(turn(i, 96), (Math.PI * k) / 6)));
    for (let k = 0; k < 6; k++) curves.push(Array.from({ length: 97 }, (_, i) => at((Math.PI * k) / 6, turn(i, 96))));
    context.lineWidth = this.canvas.ratio || 1;
    for (let level = 0; level < 5; level++) {
      context.beginPath();
      for (const curve of curves) for (let k = 0; k + 1 < curve.length; k++) {
        const depth = curve[k][2] / extent, own = depth < 0 ? 0 : Math.min(4, 1 + Math.floor(4 * depth));
        if (own !== level) continue;
        context.moveTo(curve[k][0], curve[k][1]);
        context.lineTo(curve[k + 1][0], curve[k + 1][1]);
      }
      context.strokeStyle = cssColour(this.looks.line, this.looks.grid * [0.12, 0.35, 0.6, 0.85, 1][level]);
      context.stroke();
    }
  }

  // the circle or ellipse in the plane, or axes of flat space
  outline(p) {
    if (this.solid) return [];
    if (this.kind === "euclidean") {
      const out = [], step = 10 ** Math.floor(Math.log10(p.extent)), reach = 2 * p.extent, grid = cssToLine(this.looks.line, 0.14);
      if (this.d > 2) return [0, 1, 2].map((a) => ({ points: [[0, 0, 0], [0, 0, 0]].map((v, k) => v.map((_, c) => (c === a ? (k ? 1 : -1) * p.extent * 0.8 : 0))), colour: cssToLine(this.looks.line, 0.5), width: 1.2 }));
      for (let k = -Math.ceil(reach / step); k <= reach / step; k++) {
        const strong = k === 0 ? cssToLine(this.looks.line, 0.5) : grid;
        out.push({ points: [[k * step, -reach, 0], [k * step, reach, 0]], colour: strong, width: 1 }, { points: [[-reach, k * step, 0], [reach, k * step, 0]], colour: strong, width: 1 });
      }
      return out;
    }
    const inverse = this.root ? matrixPower(multiply(this.root, this.root, 2, 2, 2), 2, -0.5) : identity(2), points = [];
    for (let k = 0; k <= 180; k++) {
      const c = Math.cos((Math.PI * k) / 90), s = Math.sin((Math.PI * k) / 90);
      points.push([inverse[0] * c + inverse[1] * s, inverse[2] * c + inverse[3] * s, 0]);
    }
    return [{ points, colour: cssToLine(this.looks.line, 0.75), width: 2 }];
  }

  // lines {points, colour [r, g, b, a] or an array of them, width} as strips of triangles
  drawLines(lines, p) {
    if (!lines.length) return;
    const gl = this.gl, data = [];
    for (const { points, colour, width } of lines) {
      const pixels = points.map((point) => this.toPixels(point, p)), half = (width / 2 + 0.5) * (this.canvas.ratio || 1);
      for (let k = 0; k + 1 < pixels.length; k++) {
        const [a, b] = [pixels[k], pixels[k + 1]], dx = b[0] - a[0], dy = b[1] - a[1], len = Math.hypot(dx, dy);
        if (len < 1e-6) continue;
        const nx = (-dy / len) * half, ny = (dx / len) * half, ca = fadeBehind(colour, a[2], this), cb = fadeBehind(colour, b[2], this);
        const corner = (q, s, c) => data.push((2 * (q[0] + s * nx)) / p.width - 1, 1 - (2 * (q[1] + s * ny)) / p.height, s, ...c);
        corner(a, 1, ca); corner(a, -1, ca); corner(b, 1, cb); corner(b, 1, cb); corner(a, -1, ca); corner(b, -1, cb);
      }
    }
    gl.useProgram(this.lines.program);
    gl.bindVertexArray(this.lineArray);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.lineBuffer);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array(data), gl.DYNAMIC_DRAW);
    gl.drawArrays(gl.TRIANGLES, 0, data.length / 7);
  }

  /* ------------------------------------------------------------ circles and lines, for SVG and without WebGL */

  // shapes from back to front: {kind: "line" | "dot" | "globe", ...} in pixels
  shapes(view) {
    const p = this.project(view), out = [], ratio = this.canvas.ratio || 1;
    if (this.solid) out.push({ kind: "globe", points: this.silhouette(p) });
    const line = ({ points, colour, width }) => {
      const pixels = points.map((point) => this.toPixels(point, p)), middle = pixels[Math.floor(pixels.length / 2)][2];
      out.push({ kind: "line", pixels, colour: fadeBehind(colour, middle, this), width: width * ratio });
    };
    this.outline(p).forEach(line);
    out.forEach((shape) => { shape.ground = true; });
    (view.lines || []).forEach(line);
    const steps = view.trails ? 10 : 0, span = Math.min(view.trails || 0, view.at), past = [];
    for (let k = 0; k <= steps; k++) past.push(this.placesAt(view.at - (span * k) / Math.max(1, steps)));
    const places = past[0], sizes = this.run.frames[Math.min(Math.round(view.at), this.count - 1)].sizes, dots = [];
    for (let i = 0; i < this.n; i++) {
      const at = (q) => this.toPixels(q.subarray(3 * i, 3 * i + 3), p), colour = Array.from(this.palette.subarray(4 * i, 4 * i + 3));
      const [x, y, z] = at(places), depth = this.solid ? z / p.extent : 0;
      for (let k = 0; k < steps; k++) {
        const a = at(past[k]), b = at(past[k + 1]);
        if (Math.hypot(a[0] - b[0], a[1] - b[1]) > 0.5) out.push({ kind: "line", pixels: [a, b], colour: fadeBehind([...colour, 0.6 * (1 - k / steps)], z, this), width: this.size(this.n) * 0.35 * (1 - (0.75 * k) / steps) });
      }
      const radius = (this.size(this.n, sizes ? sizes[i] : 0) / 2) * (1 + 0.16 * depth);
      dots.push({ kind: "dot", x, y, z, radius: i === view.selected ? 1.4 * radius : radius, colour: this.solid ? blend(colour, this.looks.shell, 0.75 * Math.min(1, Math.max(0, -depth))) : colour, token: i });
    }
    (view.arcs || []).forEach(line);
    return [...out, ...dots.sort((a, b) => a.z - b.z)];
  }

  silhouette(p) {
    const inverse = this.root ? matrixInverse3(this.root) : identity(3), hull = [];
    // points of the surface whose normal is perpendicular to the eye: images of a great circle
    const r = p.rotation, eye = [r[6], r[7], r[8]], normal = [0, 1, 2].map((row) => inverse[row * 3] * eye[0] + inverse[row * 3 + 1] * eye[1] + inverse[row * 3 + 2] * eye[2]);
    const pick = Math.abs(normal[0]) < 0.9 * Math.hypot(...normal) ? [1, 0, 0] : [0, 1, 0], cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
    const unit = (a) => a.map((value) => value / Math.hypot(...a)), u = unit(cross(normal, pick)), v = unit(cross(normal, u));
    for (let k = 0; k < 120; k++) {
      const c = Math.cos((Math.PI * k) / 60), s = Math.sin((Math.PI * k) / 60), y = [0, 1, 2].map((a) => c * u[a] + s * v[a]);
      hull.push(this.toPixels([0, 1, 2].map((row) => inverse[row * 3] * y[0] + inverse[row * 3 + 1] * y[1] + inverse[row * 3 + 2] * y[2]), p));
    }
    return hull;
  }

  drawFlat(view) {
    const context = this.context, { width, height } = this.canvas;
    context.clearRect(0, 0, width, height);
    for (const shape of this.shapes(view)) {
      if (shape.kind === "globe" || shape.ground) continue;
      context.beginPath();
      if (shape.kind === "dot") {
        context.arc(shape.x, shape.y, shape.radius, 0, 7);
        context.fillStyle = cssColour(shape.colour);
        context.fill();
        if (this.n <= 400) { // light from the left
          context.beginPath();
          context.arc(shape.x - 0.3 * shape.radius, shape.y - 0.32 * shape.radius, 0.4 * shape.radius, 0, 7);
          context.fillStyle = "rgba(255,255,255,0.22)";
          context.fill();
          context.beginPath();
          context.arc(shape.x, shape.y, shape.radius, 0, 7);
        }
        context.lineWidth = shape.token === view.selected ? 3 : 1;
        context.strokeStyle = cssColour(shape.token === view.selected ? this.looks.ink : this.looks.edge);
        context.stroke();
        continue;
      }
      shape.pixels.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.strokeStyle = cssColour(shape.colour.slice(0, 3), shape.colour[3]);
      context.lineWidth = shape.width;
      context.stroke();
    }
  }

  toSVG(view, title) {
    const { width, height } = this.canvas, parts = [], fixed = (x) => x.toFixed(1);
    const fill = (colour) => hexColour(colour.slice(0, 3)), path = (points) => points.map(([x, y], k) => `${k ? "L" : "M"}${fixed(x)} ${fixed(y)}`).join("");
    for (const shape of this.shapes(view)) {
      if (shape.kind === "globe") parts.push(`<path d="${path(shape.points)}Z" fill="url(#globe)"/>`);
      else if (shape.kind === "line") parts.push(`<path d="${path(shape.pixels)}" fill="none" stroke="${fill(shape.colour)}" stroke-opacity="${shape.colour[3].toFixed(3)}" stroke-width="${fixed(shape.width)}" stroke-linecap="round"/>`);
      else parts.push(`<circle cx="${fixed(shape.x)}" cy="${fixed(shape.y)}" r="${fixed(shape.radius)}" fill="${fill(shape.colour)}" stroke="${fill(shape.token === view.selected ? this.looks.ink : this.looks.edge)}" stroke-width="${shape.token === view.selected ? 2.5 : 0.8}"/>`);
    }
    const name = title.replace(/[&<>]/g, (letter) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[letter]);
    return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img"><title>${name}</title><defs><radialGradient id="globe" cx="0.36" cy="0.3" r="0.85"><stop offset="0" stop-color="${fill(this.looks.lit)}"/><stop offset="1" stop-color="${fill(this.looks.shell)}"/></radialGradient></defs><rect width="100%" height="100%" fill="${fill(this.looks.ground)}"/>${parts.join("")}</svg>`;
  }
}

const cssToLine = (rgb, alpha) => [...rgb, alpha];
const blend = (a, b, w) => a.map((value, k) => value + w * (b[k] - value));
const matrixInverse3 = (matrix) => invert(Float64Array.from(matrix), 3);

// colour of a line at a depth: faint behind a globe
function fadeBehind(colour, z, scene) {
  const c = typeof colour === "function" ? colour(z) : colour;
  return scene.solid && z < 0 ? [...c.slice(0, 3), c[3] * Math.max(0.15, 1 + z)] : c;
}
