// Attention as a system of differential equations, in float64: the same equations, steps and tolerances as the Python package.
// Plain functions and classes without a document, so that Node and workers run them too. Matrices are flat and row-major.
"use strict";

/* ---------------------------------------------------------------- random numbers of noise */

// high and low words of a product of two unsigned 32-bit integers
function wideProduct(a, b) {
  const a0 = a & 0xffff, a1 = a >>> 16, b0 = b & 0xffff, b1 = b >>> 16;
  const middle = a1 * b0 + Math.floor((a0 * b0) / 65536), other = a0 * b1 + (middle % 65536);
  const high = a1 * b1 + Math.floor(middle / 65536) + Math.floor(other / 65536);
  return [high >>> 0, Math.imul(a, b) >>> 0];
}

// Philox4x32-10; the layout of the counter is that of attractor.random_numbers
function philox(c0, c1, c2, c3, k0, k1) {
  for (let round = 0; round < 10; round++) {
    const [h0, l0] = wideProduct(0xd2511f53, c0 >>> 0), [h1, l1] = wideProduct(0xcd9e8d57, c2 >>> 0);
    [c0, c1, c2, c3] = [(h1 ^ c1 ^ k0) >>> 0, l1, (h0 ^ c3 ^ k1) >>> 0, l0];
    k0 = (k0 + 0x9e3779b9) >>> 0;
    k1 = (k1 + 0xbb67ae85) >>> 0;
  }
  return [c0, c1, c2, c3];
}

// standard normal numbers (tokens, dim) of one step of member 0
function normals(seed, step, tokens, dim, stream = 0) {
  const out = new Float64Array(tokens * dim), k0 = seed >>> 0, k1 = Math.floor(seed / 4294967296) >>> 0;
  for (let token = 0; token < tokens; token++) {
    for (let block = 0; 4 * block < dim; block++) {
      const words = philox(step >>> 0, token, 0, ((stream << 24) | block) >>> 0, k0, k1).map((word) => (word + 0.5) / 4294967296);
      for (let pair = 0; pair < 2; pair++) {
        const length = Math.sqrt(-2 * Math.log(words[2 * pair])), turn = 2 * Math.PI * words[2 * pair + 1];
        const place = 4 * block + 2 * pair;
        if (place < dim) out[token * dim + place] = length * Math.cos(turn);
        if (place + 1 < dim) out[token * dim + place + 1] = length * Math.sin(turn);
      }
    }
  }
  return out;
}

/* ---------------------------------------------------------------- small matrices */

const identity = (d) => Float64Array.from({ length: d * d }, (_, k) => (k % (d + 1) === 0 ? 1 : 0));
const flatMatrix = (rows) => Float64Array.from(rows.flat());

function multiply(a, b, rows, inner, columns) {
  const out = new Float64Array(rows * columns);
  for (let i = 0; i < rows; i++) for (let k = 0; k < inner; k++) for (let j = 0; j < columns; j++) out[i * columns + j] += a[i * inner + k] * b[k * columns + j];
  return out;
}

function transpose(a, rows, columns) {
  const out = new Float64Array(a.length);
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) out[j * rows + i] = a[i * columns + j];
  return out;
}

// eigenvalues (ascending) and vectors (columns) of a symmetric matrix by Jacobi rotations
function symmetricEigen(matrix, d) {
  const a = Float64Array.from(matrix), v = identity(d);
  for (let sweep = 0; sweep < 60; sweep++) {
    let off = 0;
    for (let p = 0; p < d; p++) for (let q = p + 1; q < d; q++) off += a[p * d + q] ** 2;
    if (off < 1e-300) break;
    for (let p = 0; p < d; p++) {
      for (let q = p + 1; q < d; q++) {
        if (a[p * d + q] === 0) continue;
        const theta = (a[q * d + q] - a[p * d + p]) / (2 * a[p * d + q]);
        const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1)), c = 1 / Math.sqrt(t * t + 1), s = t * c;
        for (let k = 0; k < d; k++) {
          const x = a[k * d + p], y = a[k * d + q];
          a[k * d + p] = c * x - s * y;
          a[k * d + q] = s * x + c * y;
        }
        for (let k = 0; k < d; k++) {
          const x = a[p * d + k], y = a[q * d + k];
          a[p * d + k] = c * x - s * y;
          a[q * d + k] = s * x + c * y;
          const u = v[k * d + p], w = v[k * d + q];
          v[k * d + p] = c * u - s * w;
          v[k * d + q] = s * u + c * w;
        }
      }
    }
  }
  const order = Array.from({ length: d }, (_, k) => k).sort((p, q) => a[p * d + p] - a[q * d + q]);
  const vectors = new Float64Array(d * d);
  order.forEach((from, to) => { for (let k = 0; k < d; k++) vectors[k * d + to] = v[k * d + from]; });
  return { values: order.map((p) => a[p * d + p]), vectors };
}

// a symmetric positive matrix to a power
function matrixPower(matrix, d, power) {
  const { values, vectors } = symmetricEigen(matrix, d), out = new Float64Array(d * d);
  for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) for (let k = 0; k < d; k++) out[i * d + j] += vectors[i * d + k] * vectors[j * d + k] * values[k] ** power;
  return out;
}

// e^A by scaling and squaring
function matrixExponential(matrix, d) {
  const size = Math.max(...Array.from(matrix, Math.abs)) * d, squarings = Math.max(0, Math.ceil(Math.log2(Math.max(size, 1e-300))) + 4);
  const a = matrix.map((value) => value / 2 ** squarings);
  let term = identity(d), sum = identity(d);
  for (let k = 1; k < 16; k++) {
    term = multiply(term, a, d, d, d).map((value) => value / k);
    sum = sum.map((value, index) => value + term[index]);
  }
  for (let k = 0; k < squarings; k++) sum = multiply(sum, sum, d, d, d);
  return sum;
}

// eigenvalues [real, imaginary] of a general matrix: roots of the characteristic polynomial up to 3, QR iteration above
function eigenvalues(matrix, d) {
  if (d === 1) return [[matrix[0], 0]];
  if (d === 2) {
    const half = (matrix[0] + matrix[3]) / 2, gap = ((matrix[0] - matrix[3]) / 2) ** 2 + matrix[1] * matrix[2];
    const root = Math.sqrt(Math.abs(gap));
    return gap >= 0 ? [[half + root, 0], [half - root, 0]] : [[half, root], [half, -root]];
  }
  const h = Float64Array.from(matrix), found = [];
  let m = d;
  for (let count = 0; m > 2 && count < 3000; count++) {
    const size = Math.max(...Array.from(h, Math.abs), 1e-300);
    // deflate where the last rows separate
    const last = Array.from({ length: m - 1 }, (_, j) => Math.abs(h[(m - 1) * d + j])).reduce((x, y) => x + y, 0);
    if (last < 1e-13 * size) { found.push([h[(m - 1) * d + m - 1], 0]); m -= 1; continue; }
    let pair = 0;
    for (let j = 0; j < m - 2; j++) pair += Math.abs(h[(m - 1) * d + j]) + Math.abs(h[(m - 2) * d + j]);
    if (pair < 1e-13 * size) {
      const at = (i, j) => h[(m - 2 + i) * d + m - 2 + j];
      found.push(...eigenvalues([at(0, 0), at(0, 1), at(1, 0), at(1, 1)], 2));
      m -= 2;
      continue;
    }
    // one step of QR by Gram-Schmidt, with a real shift that changes now and then
    const shift = h[(m - 1) * d + m - 1] * (count % 11 === 10 ? 0.7 : count % 2 ? 1 : 0);
    const q = [], r = new Float64Array(m * m);
    for (let j = 0; j < m; j++) {
      const column = Array.from({ length: m }, (_, i) => h[i * d + j] - (i === j ? shift : 0));
      for (let pass = 0; pass < 2; pass++) for (let k = 0; k < j; k++) {
        const part = q[k].reduce((sum, value, i) => sum + value * column[i], 0);
        r[k * m + j] += part;
        for (let i = 0; i < m; i++) column[i] -= part * q[k][i];
      }
      const length = Math.hypot(...column);
      r[j * m + j] = length;
      q.push(length > 1e-300 ? column.map((value) => value / length) : column.map((_, i) => (i === j ? 1 : 0)));
    }
    for (let i = 0; i < m; i++) for (let j = 0; j < m; j++) {
      let sum = i === j ? shift : 0;
      for (let k = 0; k < m; k++) sum += r[i * m + k] * q[j][k];
      h[i * d + j] = sum;
    }
  }
  if (m === 2) found.push(...eigenvalues([h[0], h[1], h[d], h[d + 1]], 2));
  if (m === 1) found.push([h[0], 0]);
  return found.sort((a, b) => b[0] - a[0] || b[1] - a[1]);
}

const symmetricPart = (a, d) => a.map((value, k) => (value + a[(k % d) * d + Math.floor(k / d)]) / 2);
const isMultiple = (a, d) => a.every((value, k) => value === (k % (d + 1) === 0 ? a[0] : 0));

// Gauss-Jordan; null for a singular matrix
function invert(matrix, d) {
  const a = Float64Array.from(matrix), b = identity(d);
  for (let c = 0; c < d; c++) {
    let best = c;
    for (let i = c + 1; i < d; i++) if (Math.abs(a[i * d + c]) > Math.abs(a[best * d + c])) best = i;
    if (Math.abs(a[best * d + c]) < 1e-14) return null;
    for (let k = 0; k < d; k++) {
      [a[c * d + k], a[best * d + k]] = [a[best * d + k], a[c * d + k]];
      [b[c * d + k], b[best * d + k]] = [b[best * d + k], b[c * d + k]];
    }
    const pivot = a[c * d + c];
    for (let k = 0; k < d; k++) { a[c * d + k] /= pivot; b[c * d + k] /= pivot; }
    for (let i = 0; i < d; i++) {
      if (i === c) continue;
      const factor = a[i * d + c];
      for (let k = 0; k < d; k++) { a[i * d + k] -= factor * a[c * d + k]; b[i * d + k] -= factor * b[c * d + k]; }
    }
  }
  return b;
}

/* ---------------------------------------------------------------- spaces */

class Space {
  constructor(given, d) {
    this.d = d;
    this.name = typeof given === "string" ? given : "ellipsoid";
    this.curved = this.name !== "euclidean";
    if (this.name === "ellipsoid") {
      this.W = flatMatrix(given.ellipsoid);
      this.inverseRoot = matrixPower(this.W, d, -0.5);
      this.root = matrixPower(this.W, d, 0.5);
    }
  }

  // <x, v> in the metric of the space, of token i
  inner(x, v, i) {
    const d = this.d, o = i * d;
    let sum = 0;
    if (this.W) {
      for (let a = 0; a < d; a++) {
        let row = 0;
        for (let b = 0; b < d; b++) row += this.W[a * d + b] * x[o + b];
        sum += row * v[o + a];
      }
    } else for (let a = 0; a < d; a++) sum += x[o + a] * v[o + a];
    return sum;
  }

  stretch(y, i) {
    return this.curved ? Math.sqrt(this.inner(y, y, i)) : 1;
  }

  tangent(x, v, n) {
    if (!this.curved) return;
    const d = this.d;
    for (let i = 0; i < n; i++) {
      const part = this.inner(x, v, i) / this.inner(x, x, i);
      for (let a = 0; a < d; a++) v[i * d + a] -= x[i * d + a] * part;
    }
  }

  retract(y, n) {
    if (!this.curved) return y;
    const d = this.d;
    for (let i = 0; i < n; i++) {
      const length = this.stretch(y, i);
      for (let a = 0; a < d; a++) y[i * d + a] /= length;
    }
    return y;
  }

  // put tokens on the space; points on it are kept exactly
  enter(y, n) {
    if (!this.curved) return y;
    const d = this.d;
    for (let i = 0; i < n; i++) {
      const length = this.stretch(y, i);
      if (!(length > 0)) throw new Error(`token ${i} is at the origin, which has no place on the ${this.name}`);
      if (Math.abs(length - 1) > 16 * Number.EPSILON) for (let a = 0; a < d; a++) y[i * d + a] /= length;
    }
    return y;
  }

  // standard normal vectors as tangent vectors, in place
  whiteNoise(x, xi, n) {
    if (!this.curved) return;
    if (this.inverseRoot) {
      const d = this.d, row = new Float64Array(d);
      for (let i = 0; i < n; i++) {
        row.fill(0);
        for (let a = 0; a < d; a++) for (let b = 0; b < d; b++) row[a] += xi[i * d + b] * this.inverseRoot[b * d + a];
        xi.set(row, i * d);
      }
    }
    this.tangent(x, xi, n);
  }

  // the ends of the geodesics from x with velocities v, written to x
  exponential(x, v, n) {
    const d = this.d;
    for (let i = 0; i < n; i++) {
      if (!this.curved) {
        for (let a = 0; a < d; a++) x[i * d + a] += v[i * d + a];
        continue;
      }
      const turn = Math.sqrt(this.inner(v, v, i)), along = turn === 0 ? 1 : Math.sin(turn) / turn, c = Math.cos(turn);
      for (let a = 0; a < d; a++) x[i * d + a] = c * x[i * d + a] + along * v[i * d + a];
    }
    this.retract(x, n);
  }
}

/* ---------------------------------------------------------------- the law */

class Law {
  constructor(system) {
    const d = system.dim, sign = system.reverse ? -1 : 1;
    this.d = d;
    this.kernel = system.kernel || "softmax";
    this.beta = system.beta;
    this.causal = system.mask !== null && system.mask !== undefined;
    this.window = system.mask && system.mask.window ? system.mask.window : 0;
    this.theta = system.positions && system.positions.rotary ? system.positions.rotary : 0;
    this.heads = system.heads.map((head) => {
      const W = head.query ? null : flatMatrix(head.interaction), V = flatMatrix(head.value).map((value) => sign * value);
      const query = head.query ? flatMatrix(head.query) : null, key = head.query ? flatMatrix(head.key) : W;
      const k = head.query ? head.query.length : d;
      return { query, key, k, V, scalar: isMultiple(V, d) ? V[0] : null, plain: !head.query && isMultiple(W, d) ? W[0] : null };
    });
    this.scalarValues = this.heads.every((head) => head.scalar !== null);
    if (this.theta && this.heads.some((head) => head.k % 2)) throw new Error("rotary positions turn pairs of coordinates: take an even dimension");
    this.room = 0;
  }

  reserve(n) {
    if (this.room >= n) return;
    const widest = Math.max(...this.heads.map((head) => head.k));
    this.q = new Float64Array(n * widest);
    this.key = new Float64Array(n * widest);
    this.scores = new Float64Array(n);
    this.triangle = null;
    this.room = n;
  }

  project(head, x, n) {
    const d = this.d, k = head.k, { q, key } = this;
    for (let i = 0; i < n; i++) {
      for (let r = 0; r < k; r++) {
        let a = 0, b = 0;
        if (head.query) for (let c = 0; c < d; c++) a += x[i * d + c] * head.query[r * d + c];
        else a = x[i * d + r];
        if (head.plain === 1) b = x[i * d + r];
        else for (let c = 0; c < d; c++) b += x[i * d + c] * head.key[r * d + c];
        q[i * k + r] = a;
        key[i * k + r] = b;
      }
    }
    if (!this.theta) return;
    for (let i = 0; i < n; i++) {
      for (let p = 0; p < k; p += 2) {
        const angle = i * this.theta ** (-p / k), c = Math.cos(angle), s = Math.sin(angle);
        for (const vectors of [q, key]) {
          const even = vectors[i * k + p], odd = vectors[i * k + p + 1];
          vectors[i * k + p] = even * c - odd * s;
          vectors[i * k + p + 1] = even * s + odd * c;
        }
      }
    }
  }

  first(i) {
    return this.window ? Math.max(0, i - this.window + 1) : 0;
  }

  // weights of row i of the projected queries and keys into scores[first..last); returns the sum that normalises, 1 if none
  weigh(head, i, n, masses) {
    const { q, key, scores, beta, kernel } = this, k = head.k, begin = this.first(i), end = this.causal ? i + 1 : n;
    let top = -Infinity;
    const o = i * k;
    if (kernel === "l2") {
      for (let j = begin; j < end; j++) {
        let s = 0;
        for (let c = 0; c < k; c++) s += (q[o + c] - key[j * k + c]) ** 2;
        s *= -beta;
        scores[j] = s;
        if (s > top) top = s;
      }
    } else if (k === 2) {
      const a = q[o] * beta, b = q[o + 1] * beta;
      for (let j = begin, at = 2 * begin; j < end; j++, at += 2) {
        const s = a * key[at] + b * key[at + 1];
        scores[j] = s;
        if (s > top) top = s;
      }
    } else if (k === 3) {
      const a = q[o] * beta, b = q[o + 1] * beta, c = q[o + 2] * beta;
      for (let j = begin, at = 3 * begin; j < end; j++, at += 3) {
        const s = a * key[at] + b * key[at + 1] + c * key[at + 2];
        scores[j] = s;
        if (s > top) top = s;
      }
    } else {
      for (let j = begin; j < end; j++) {
        let s = 0;
        for (let c = 0; c < k; c++) s += q[o + c] * beta * key[j * k + c];
        scores[j] = s;
        if (s > top) top = s;
      }
    }
    let sum = 0;
    if (kernel === "softmax" || kernel === "l2") {
      for (let j = begin; j < end; j++) { const w = masses[j] * Math.exp(scores[j] - top); scores[j] = w; sum += w; }
      return sum;
    }
    if (kernel === "hardmax") {
      for (let j = begin; j < end; j++) { const w = scores[j] >= top ? masses[j] : 0; scores[j] = w; sum += w; }
      return sum;
    }
    if (kernel === "exponential") for (let j = begin; j < end; j++) scores[j] = masses[j] * Math.exp(scores[j]);
    else if (kernel === "sigmoid") for (let j = begin; j < end; j++) scores[j] = masses[j] / (1 + Math.exp(-scores[j]));
    else throw new Error(`the kernel ${kernel} is not computed in the browser`);
    return 1;
  }

  // velocities before projection; on curved spaces terms parallel to the token itself are left out
  drive(x, masses, n, curved, out) {
    this.reserve(n);
    out.fill(0, 0, n * this.d);
    const d = this.d, skip = curved && this.scalarValues, sum = new Float64Array(d), { scores } = this;
    if (this.drivesSymmetrically(curved)) return this.driveSymmetrically(x, masses, n, skip, out);
    for (const head of this.heads) {
      this.project(head, x, n);
      for (let i = 0; i < n; i++) {
        const total = this.weigh(head, i, n, masses), begin = this.first(i), end = this.causal ? i + 1 : n;
        if (skip) scores[i] = 0;
        if (d === 2) {
          let a = 0, b = 0;
          for (let j = begin, at = 2 * begin; j < end; j++, at += 2) { const w = scores[j]; a += w * x[at]; b += w * x[at + 1]; }
          sum[0] = a; sum[1] = b;
        } else if (d === 3) {
          let a = 0, b = 0, c = 0;
          for (let j = begin, at = 3 * begin; j < end; j++, at += 3) { const w = scores[j]; a += w * x[at]; b += w * x[at + 1]; c += w * x[at + 2]; }
          sum[0] = a; sum[1] = b; sum[2] = c;
        } else {
          sum.fill(0);
          for (let j = begin; j < end; j++) for (let c = 0; c < d; c++) sum[c] += scores[j] * x[j * d + c];
        }
        if (head.scalar !== null) for (let c = 0; c < d; c++) out[i * d + c] += (head.scalar * sum[c]) / total;
        else for (let r = 0; r < d; r++) {
          let v = 0;
          for (let c = 0; c < d; c++) v += head.V[r * d + c] * sum[c];
          out[i * d + r] += v / total;
        }
      }
    }
  }

  // one exponential serves both (i, j) and (j, i) where scores are beta c <x_i, x_j> of vectors of one length
  drivesSymmetrically(curved) {
    const head = this.heads[0];
    return curved === "sphere" && this.heads.length === 1 && !this.causal && !this.theta && head.plain !== null && head.scalar !== null &&
      this.beta * head.plain >= 0 && (this.kernel === "softmax" || this.kernel === "exponential");
  }

  driveSymmetrically(x, masses, n, skip, out) {
    const d = this.d, head = this.heads[0], beta = this.beta * head.plain, { scores: totals } = this;
    totals.fill(0, 0, n);
    for (let i = 0; i < n; i++) {
      let total = totals[i] + masses[i];
      const mi = masses[i];
      if (d === 2) {
        const p = x[2 * i], q = x[2 * i + 1], P = beta * p, Q = beta * q;
        let a = 0, b = 0;
        for (let j = i + 1, at = 2 * j; j < n; j++, at += 2) {
          const u = x[at], v = x[at + 1], e = Math.exp(P * u + Q * v - beta), w = masses[j] * e, back = mi * e;
          total += w; a += w * u; b += w * v;
          totals[j] += back; out[at] += back * p; out[at + 1] += back * q;
        }
        out[2 * i] += a; out[2 * i + 1] += b;
      } else if (d === 3) {
        const p = x[3 * i], q = x[3 * i + 1], r = x[3 * i + 2], P = beta * p, Q = beta * q, R = beta * r;
        let a = 0, b = 0, c = 0;
        for (let j = i + 1, at = 3 * j; j < n; j++, at += 3) {
          const u = x[at], v = x[at + 1], z = x[at + 2], e = Math.exp(P * u + Q * v + R * z - beta), w = masses[j] * e, back = mi * e;
          total += w; a += w * u; b += w * v; c += w * z;
          totals[j] += back; out[at] += back * p; out[at + 1] += back * q; out[at + 2] += back * r;
        }
        out[3 * i] += a; out[3 * i + 1] += b; out[3 * i + 2] += c;
      } else {
        for (let j = i + 1; j < n; j++) {
          let s = 0;
          for (let c = 0; c < d; c++) s += x[i * d + c] * x[j * d + c];
          const e = Math.exp(beta * s - beta), w = masses[j] * e, back = mi * e;
          total += w;
          totals[j] += back;
          for (let c = 0; c < d; c++) { out[i * d + c] += w * x[j * d + c]; out[j * d + c] += back * x[i * d + c]; }
        }
      }
      totals[i] = total;
    }
    const level = this.kernel === "exponential" ? Math.exp(beta) : 0;
    for (let i = 0; i < n; i++) {
      const factor = this.kernel === "exponential" ? head.scalar * level : head.scalar / totals[i];
      for (let c = 0; c < d; c++) out[i * d + c] = factor * (out[i * d + c] + (skip ? 0 : masses[i] * x[i * d + c]));
    }
  }

  // weights (n, n) of one head, for pictures
  weights(x, masses, n, headIndex = 0) {
    this.reserve(n);
    const head = this.heads[headIndex], out = new Float64Array(n * n);
    this.project(head, x, n);
    for (let i = 0; i < n; i++) {
      const total = this.weigh(head, i, n, masses), end = this.causal ? i + 1 : n;
      for (let j = this.first(i); j < end; j++) out[i * n + j] = this.scores[j] / total;
    }
    return out;
  }

  // interaction energy: 1/2 sum m_i m_j phi(s_ij), heads summed; NaN where none is known
  energy(x, masses, n) {
    if (this.kernel === "l2" || this.kernel === "hardmax") return NaN;
    this.reserve(n);
    const kernel = this.kernel;
    let sum = 0;
    for (const head of this.heads) {
      this.project(head, x, n);
      const { q, key } = this, k = head.k;
      for (let i = 0; i < n; i++) for (let j = this.first(i); j < (this.causal ? i + 1 : n); j++) {
        let s = 0;
        for (let c = 0; c < k; c++) s += q[i * k + c] * key[j * k + c];
        s *= this.beta;
        sum += masses[i] * masses[j] * (kernel === "sigmoid" ? (s > 0 ? s : 0) + Math.log1p(Math.exp(-Math.abs(s))) : Math.exp(s));
      }
    }
    return sum / 2;
  }
}

/* ---------------------------------------------------------------- integration */

const SAFETY = 0.85, SHRINK = 0.2, GROW = 5, UNRESOLVED = 1e-14;
// the tableau of DOP853: {A, B, C, E3, E5, A_EXTRA, C_EXTRA, D}; the page and the tests set it from SciPy's
let DOP853 = null;
const setTableau = (tableau) => { DOP853 = tableau; };

// s and time are related by t = tau sinh(s): fast motion at the start and slow motion at the end get equal room
const clockScale = (until) => Math.min(0.5, until / 10);
function saveTimes(until, count, clock) {
  const tau = clockScale(until), end = Math.asinh(until / tau);
  const times = Array.from({ length: count + 1 }, (_, k) => (clock === "linear" ? (until * k) / count : tau * Math.sinh((end * k) / count)));
  times[count] = until;
  return times;
}

class Integration {
  // frames are saved at the given times; noise and layers save at the ends of steps
  constructor(system, times = null) {
    this.system = system;
    this.d = system.dim;
    this.law = new Law(system);
    this.space = new Space(system.space, this.d);
    const x = drawStart(system.start, this.d);
    this.total = x.length / this.d; // original tokens
    this.n = this.total;
    if (x.length !== this.n * this.d || !this.n) throw new Error("points must be rows of one length");
    if (!x.every(Number.isFinite)) throw new Error("points must be finite numbers");
    this.y = this.space.enter(x, this.n);
    this.masses = system.masses ? Float64Array.from(system.masses) : new Float64Array(this.n).fill(1 / this.n);
    this.until = system.until;
    this.rtol = system.rtol || 1e-8;
    this.atol = system.atol || 1e-10;
    this.tolerance = system.merge || 0;
    this.fixed = system.noise > 0 ? system.step || 0.01 : system.layers || 0;
    this.rowOf = Int32Array.from({ length: this.n }, (_, i) => i);
    this.members = Array.from({ length: this.n }, (_, i) => [i]);
    this.pinned = system.pinned && system.pinned.length ? Uint8Array.from({ length: this.n }, (_, i) => (system.pinned.includes(i) ? 1 : 0)) : null;
    this.events = [];
    this.times = times || saveTimes(this.until, 400, "log");
    if (this.fixed) this.times = this.stepEnds(this.times);
    this.next = 0;
    this.t = 0;
    this.low = 0;
    this.h = 0;
    this.steps = this.rejected = this.evaluations = 0;
    this.retried = false;
    this.done = false;
    this.outcome = null;
    this.slack = 0;
    this.anchor = null;
    this.frames = [];
    this.allocate();
    this.begin();
  }

  allocate() {
    const size = this.total * this.d;
    this.K = Array.from({ length: 16 }, () => new Float64Array(size));
    this.inner = new Float64Array(size);
    this.end = new Float64Array(size);
    this.x = new Float64Array(size);
    this.f = new Float64Array(size);
    this.fEnd = new Float64Array(size);
  }

  stepEnds(times) {
    const ends = times.map((time) => Math.min(this.until, Math.round(time / this.fixed) * this.fixed));
    return ends.filter((time, k) => k === 0 || time > ends[k - 1] * (1 + 1e-12));
  }

  lifted(y, out) {
    const { n, d, space } = this;
    this.evaluations++;
    if (!space.curved) {
      this.law.drive(y, this.masses, n, false, out);
    } else {
      const x = this.x;
      for (let i = 0; i < n; i++) {
        const s = space.stretch(y, i);
        for (let a = 0; a < d; a++) x[i * d + a] = y[i * d + a] / s;
      }
      this.law.drive(x, this.masses, n, space.name, out);
      space.tangent(x, out, n);
      for (let i = 0; i < n; i++) {
        const s = space.stretch(y, i);
        for (let a = 0; a < d; a++) out[i * d + a] *= s;
      }
    }
    if (this.pinned) for (let i = 0; i < n; i++) if (this.pinned[i]) out.fill(0, i * d, (i + 1) * d);
  }

  norm(v, i) {
    const d = this.d;
    let sum = 0;
    for (let a = 0; a < d; a++) sum += v[i * d + a] * v[i * d + a];
    return Math.sqrt(sum);
  }

  begin() {
    if (this.fixed) {
      this.h = this.fixed;
      if (!this.system.layers) this.lifted(this.y, this.f);
      return this.save();
    }
    this.merge();
    this.lifted(this.y, this.f);
    const longest = this.until, { n, y, f } = this;
    let value = 0, slope = 0, change = 0;
    for (let i = 0; i < n; i++) {
      const allowed = this.atol + this.rtol * this.norm(y, i);
      value = Math.max(value, this.norm(y, i) / allowed);
      slope = Math.max(slope, this.norm(f, i) / allowed);
    }
    let guess = value < 1e-5 || slope < 1e-5 ? 1e-6 : (0.01 * value) / slope;
    guess = Math.min(guess, longest);
    for (let k = 0; k < n * this.d; k++) this.inner[k] = y[k] + guess * f[k];
    this.lifted(this.inner, this.fEnd);
    for (let k = 0; k < n * this.d; k++) this.fEnd[k] -= f[k];
    for (let i = 0; i < n; i++) change = Math.max(change, this.norm(this.fEnd, i) / (this.atol + this.rtol * this.norm(y, i)));
    const steep = Math.max(slope, change / guess);
    const second = steep <= 1e-15 ? Math.max(1e-6, guess * 1e-3) : (0.01 / steep) ** (1 / 8);
    const step = Math.min(100 * guess, second, longest);
    this.h = Number.isFinite(step) && step > 0 ? step : Math.min(1e-6, longest);
    this.save();
  }

  left() {
    return this.until - this.t - this.low;
  }

  addTime(h, arrived) {
    if (arrived) { this.t = this.until; this.low = 0; return; }
    const move = h + this.low, total = this.t + move;
    this.low = this.t - (total - (total - this.t)) + (move - (total - this.t));
    this.t = total;
  }

  // take steps until the end, or until some milliseconds have passed
  advance(milliseconds = Infinity) {
    const start = Date.now();
    let count = 0;
    while (!this.done) {
      if (this.system.noise > 0) this.noisyStep();
      else if (this.system.layers) this.layer();
      else this.step();
      if (++count % 4 === 0 && Date.now() - start > milliseconds) break;
      if (this.n * this.n > 40000 && Date.now() - start > milliseconds) break;
    }
    return this.done;
  }

  finish(name, message) {
    this.done = true;
    this.outcome = { name, time: this.t, message };
    if (name !== "reached") return;
    while (this.next < this.times.length) this.push(this.times[this.next++], this.y);
  }

  step() {
    const { n, d, y, f, K, inner, end, fEnd } = this, { A, B, C, E3, E5 } = DOP853, size = n * d;
    if (n === 1 && this.tolerance && this.space.curved && this.law.scalarValues) { // one token of all mass is at rest
      this.addTime(this.left(), true);
      return this.finish("reached", "all tokens are at one point");
    }
    const left = this.left();
    let h = Math.min(this.h, left);
    if (left < 1.000001 * h) h = left;
    K[0].set(f.subarray(0, size));
    for (let stage = 1; stage < 12; stage++) {
      const row = A[stage];
      for (let k = 0; k < size; k++) {
        let sum = 0;
        for (let j = 0; j < stage; j++) sum += row[j] * K[j][k];
        inner[k] = y[k] + h * sum;
      }
      this.lifted(inner, K[stage]);
    }
    for (let k = 0; k < size; k++) {
      let sum = 0;
      for (let j = 0; j < 12; j++) sum += B[j] * K[j][k];
      end[k] = y[k] + h * sum;
    }
    this.lifted(end, fEnd);
    K[12].set(fEnd.subarray(0, size));
    let error = 0;
    for (let i = 0; i < n; i++) {
      let third = 0, fifth = 0;
      for (let k = i * d; k < (i + 1) * d; k++) {
        let a = 0, b = 0;
        for (let j = 0; j < 13; j++) { a += E3[j] * K[j][k]; b += E5[j] * K[j][k]; }
        third += (h * a) ** 2;
        fifth += (h * b) ** 2;
      }
      const scale = this.atol + this.rtol * Math.max(this.norm(y, i), this.norm(end, i));
      third = Math.sqrt(third) / scale;
      fifth = Math.sqrt(fifth) / scale;
      const both = Math.sqrt(fifth * fifth + 0.01 * third * third);
      const token = both > 0 ? (fifth * fifth) / both : both;
      if (!(token <= error)) error = token;
    }
    if (!Number.isFinite(error)) error = Infinity;
    const accepted = error <= 1;
    let grown = h * Math.min(Math.max(SAFETY * Math.max(error, 1e-300) ** (-1 / 8), SHRINK), accepted && !this.retried ? GROW : 1);
    if (accepted && h < this.h) grown = Math.max(grown, this.h);
    this.h = Math.min(grown, this.until);
    this.retried = !accepted;
    if (!accepted) {
      this.rejected++;
      if (!(this.h > UNRESOLVED * Math.max(this.t, 1e-8))) this.finish("stalled", "the step size fell to rounding before the tolerance was met");
      return;
    }
    this.steps++;
    const before = this.t, beforeLow = this.low;
    this.addTime(h, h === left);
    if (this.next < this.times.length && this.times[this.next] <= this.t) this.saveInside(before, beforeLow, h);
    for (let i = 0; i < n; i++) {
      const s = this.space.stretch(end, i);
      for (let k = i * d; k < (i + 1) * d; k++) { y[k] = end[k] / s; f[k] = fEnd[k] / s; }
    }
    this.save();
    if (this.tolerance) this.merge();
    let far = 0;
    for (let k = 0; k < size; k++) far = Math.max(far, Math.abs(y[k]));
    if (!(far < 1e9)) return this.finish("diverged", "token norms grew past a thousand million");
    if (this.t >= this.until) this.finish("reached", `the requested time ${this.until} was reached`);
  }

  // states at the saved times inside the last step, by the interpolant of order 7
  saveInside(before, beforeLow, h) {
    const { n, d, y, f, K, inner, end, fEnd } = this, { A_EXTRA, C_EXTRA, D } = DOP853, size = n * d;
    for (let extra = 0; extra < C_EXTRA.length; extra++) {
      const row = A_EXTRA[extra];
      for (let k = 0; k < size; k++) {
        let sum = 0;
        for (let j = 0; j < 13 + extra; j++) sum += row[j] * K[j][k];
        inner[k] = y[k] + h * sum;
      }
      this.lifted(inner, K[13 + extra]);
    }
    const parts = Array.from({ length: 7 }, () => new Float64Array(size));
    for (let k = 0; k < size; k++) {
      const moved = end[k] - y[k];
      parts[0][k] = moved;
      parts[1][k] = h * f[k] - moved;
      parts[2][k] = 2 * moved - h * (fEnd[k] + f[k]);
      for (let row = 0; row < 4; row++) {
        let sum = 0;
        for (let j = 0; j < 16; j++) sum += D[row][j] * K[j][k];
        parts[3 + row][k] = h * sum;
      }
    }
    while (this.next < this.times.length && this.times[this.next] < this.t) {
      const time = this.times[this.next++], x = (time - before - beforeLow) / h, point = new Float64Array(size);
      for (let k = 0; k < size; k++) {
        let sum = 0;
        for (let part = 6; part >= 0; part--) sum = (sum + parts[part][k]) * ((6 - part) % 2 ? 1 - x : x);
        point[k] = y[k] + sum;
      }
      this.push(time, this.space.retract(point, n));
    }
  }

  // save the present state if it is due
  save() {
    const slack = this.fixed ? 1e-6 * this.fixed : 0;
    while (this.next < this.times.length && this.times[this.next] <= this.t + slack) this.push(this.times[this.next++], this.y);
  }

  push(time, points) {
    const d = this.d, all = new Float64Array(this.total * d);
    for (let i = 0; i < this.total; i++) all.set(points.subarray(this.rowOf[i] * d, (this.rowOf[i] + 1) * d), i * d);
    this.frames.push({ t: time, points: all, clusters: this.n });
  }

  /* ------------------------------------------------------------ merging */

  // nearest neighbours that are mutual and closer than the tolerance; and the smallest distance
  closePairs() {
    const { n, d, y } = this, nearest = new Int32Array(n).fill(-1), gaps = new Float64Array(n).fill(Infinity);
    for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) {
      let s = 0;
      for (let a = 0; a < d; a++) s += (y[i * d + a] - y[j * d + a]) ** 2;
      if (s < gaps[i]) { gaps[i] = s; nearest[i] = j; }
      if (s < gaps[j]) { gaps[j] = s; nearest[j] = i; }
    }
    const pairs = [];
    let gap = Infinity;
    for (let i = 0; i < n; i++) {
      const own = Math.sqrt(gaps[i]);
      gap = Math.min(gap, own);
      if (own < this.tolerance && nearest[i] > i && nearest[nearest[i]] === i) pairs.push([i, nearest[i]]);
    }
    return { pairs, gap };
  }

  merge() {
    if (!this.tolerance || this.pinned) return;
    if (this.anchor && this.anchor.length === this.n * this.d && this.slack > 0) {
      let moved = 0;
      for (let i = 0; i < this.n; i++) {
        let s = 0;
        for (let k = i * this.d; k < (i + 1) * this.d; k++) s += (this.y[k] - this.anchor[k]) ** 2;
        moved = Math.max(moved, s);
      }
      if (2 * Math.sqrt(moved) < this.slack) return;
    }
    let merged = false;
    for (;;) {
      if (this.n < 2) { this.slack = Infinity; break; }
      const { pairs, gap } = this.closePairs();
      this.slack = gap - this.tolerance;
      if (!pairs.length) break;
      merged = true;
      this.join(pairs);
    }
    this.anchor = this.y.slice(0, this.n * this.d);
    if (merged) this.lifted(this.y, this.f);
  }

  join(pairs) {
    const { d, y, masses } = this, dropped = new Set();
    for (const [keep, drop] of pairs) {
      const total = masses[keep] + masses[drop], part = total > 0 ? masses[keep] / total : 0.5;
      for (let a = 0; a < d; a++) y[keep * d + a] = part * y[keep * d + a] + (1 - part) * y[drop * d + a];
      masses[keep] = total;
      for (const token of this.members[drop]) { this.members[keep].push(token); this.rowOf[token] = keep; }
      dropped.add(drop);
      this.events.push({ kind: "merge", time: this.t, mass: total, size: this.members[keep].length, token: this.members[keep][0] });
    }
    let to = 0;
    for (let from = 0; from < this.n; from++) {
      if (dropped.has(from)) continue;
      if (to !== from) {
        y.copyWithin(to * d, from * d, (from + 1) * d);
        masses[to] = masses[from];
        this.members[to] = this.members[from];
        for (const token of this.members[to]) this.rowOf[token] = to;
      }
      to++;
    }
    this.n = to;
    this.members.length = to;
    this.space.retract(y.subarray(0, to * d), to);
  }

  /* ------------------------------------------------------------ noise and layers */

  heun(h) {
    const { n, d, y, f, inner, fEnd } = this, size = n * d;
    for (let k = 0; k < size; k++) inner[k] = y[k] + h * f[k];
    this.lifted(inner, fEnd);
    for (let k = 0; k < size; k++) y[k] += (h / 2) * (f[k] + fEnd[k]);
    this.space.retract(y, n);
  }

  fixedStep() {
    const left = this.left();
    return left < (1 + 1e-6) * this.fixed ? left : this.fixed;
  }

  arrive(h, left) {
    this.steps++;
    this.addTime(h, h === left);
    this.save();
    if (!this.y.subarray(0, this.n * this.d).every(Number.isFinite)) return this.finish("stalled", "the fixed step left the finite numbers; use a smaller one");
    if (this.t >= this.until) this.finish("reached", `the requested time ${this.until} was reached`);
  }

  // Strang splitting of weak order 2: half a step of the drift, Brownian motion, half a step of the drift
  noisyStep() {
    const { n, d, y, space, system } = this, left = this.left(), h = this.fixedStep();
    this.heun(h / 2);
    const xi = normals(system.noise_seed || 0, this.steps, n, d), curvature = space.curved ? 1 : 0;
    const factor = 1 - ((d - 2) * h * curvature * system.noise) / 3;
    if (!(factor > 0)) return this.finish("stalled", "the step is too long for this noise; take a smaller one");
    const size = Math.sqrt(2 * h * system.noise * factor);
    for (let k = 0; k < n * d; k++) xi[k] *= size;
    if (this.pinned) for (let i = 0; i < n; i++) if (this.pinned[i]) xi.fill(0, i * d, (i + 1) * d);
    space.whiteNoise(y, xi, n);
    space.exponential(y, xi, n);
    this.lifted(y, this.f);
    this.heun(h / 2);
    this.lifted(y, this.f);
    this.arrive(h, left);
  }

  // one residual layer x <- N(x + h b(x)), the velocity b not projected
  layer() {
    const { n, d, y, fEnd, space } = this, left = this.left(), h = this.fixedStep();
    this.evaluations++;
    this.law.drive(y, this.masses, n, false, fEnd);
    for (let i = 0; i < n; i++) if (!(this.pinned && this.pinned[i])) for (let k = i * d; k < (i + 1) * d; k++) y[k] += h * fEnd[k];
    space.retract(y, n);
    this.arrive(h, left);
  }
}

if (typeof module !== "undefined") {
  module.exports = { ...(module.exports || {}), philox, normals, symmetricEigen, eigenvalues, matrixExponential, matrixPower, invert, multiply, Space, Law, Integration, saveTimes, setTableau };
}
