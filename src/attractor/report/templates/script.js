// Interactive parts of a page: theme, copying, sorting, figures drawn when they come near the viewport, heat maps with panels.
(function () {
  "use strict";
  const root = document.documentElement, night = window.matchMedia("(prefers-color-scheme: dark)");
  const all = (selector, inside) => Array.from((inside || document).querySelectorAll(selector));
  const make = (tag, attributes, text) => {
    const made = document.createElement(tag);
    Object.entries(attributes || {}).forEach(([name, value]) => made.setAttribute(name, value));
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const data = (figure) => JSON.parse(figure.querySelector("script.data").textContent);
  const painters = [];

  // light and dark
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : night.matches);
  const memory = { read: () => { try { return localStorage.getItem("attractor-theme"); } catch { return null; } },
    write: (value) => { try { localStorage.setItem("attractor-theme", value); } catch { /* a file may have no memory */ } } };
  const toggle = document.getElementById("theme");
  function paint() {
    toggle.querySelector(".label").textContent = isDark() ? "Light" : "Dark";
    return Promise.all(painters.map((painter) => painter(isDark())));
  }
  function choose(theme) { root.dataset.theme = theme; paint(); }
  if (["light", "dark"].includes(memory.read())) root.dataset.theme = memory.read();
  toggle.addEventListener("click", () => { const theme = isDark() ? "light" : "dark"; memory.write(theme); choose(theme); });
  night.addEventListener("change", paint);

  // copying
  const copied = (text) => {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    const area = make("textarea", { style: "position:fixed;opacity:0" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    return Promise.resolve();
  };
  all(".copy").forEach((button) => button.addEventListener("click", () => copied(button.dataset.copy).then(() => {
    button.textContent = "Copied";
    window.setTimeout(() => { button.textContent = "Copy"; }, 1500);
  })));

  // sorting
  const value = (text) => {
    const plain = text.trim().replaceAll(",", "").replace("−", "-").replace("∞", "Infinity");
    return plain !== "" && !Number.isNaN(Number(plain)) ? Number(plain) : text.trim();
  };
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  all("table.rows").forEach((table) => all(".sort", table).forEach((button, column) => button.addEventListener("click", () => {
    const head = button.closest("th"), up = head.getAttribute("aria-sort") !== "ascending", body = table.tBodies[0];
    all("th", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = Array.from(body.rows).sort((a, b) => (up ? 1 : -1) * order(value(a.cells[column].textContent), value(b.cells[column].textContent)));
    body.append(...rows);
  })));

  // plots
  const looks = { light: { ink: "#1b1f24", quiet: "#525c68", hair: "#e3e8ee", paper: "#ffffff" }, dark: { ink: "#e9edf2", quiet: "#a9b3c0", hair: "#2b333d", paper: "#1a2028" } };
  function themed(layout, dark) {
    const look = looks[dark ? "dark" : "light"];
    const change = { "font.color": look.ink, "modebar.color": look.quiet, "modebar.activecolor": look.ink, "hoverlabel.bgcolor": look.paper,
      "hoverlabel.font.color": look.ink, "hoverlabel.bordercolor": look.quiet, "legend.font.color": look.ink };
    Object.keys(layout).forEach((key) => {
      const axes = /^scene\d*$/.test(key) ? ["xaxis", "yaxis", "zaxis"].map((axis) => `${key}.${axis}`) : /^[xy]axis\d*$/.test(key) ? [key] : [];
      axes.forEach((axis) => { change[`${axis}.gridcolor`] = look.hair; change[`${axis}.color`] = look.quiet; });
    });
    return change;
  }
  // screen readers get the alt text instead of the letters and ticks of the figure
  const described = (place) => all(".main-svg, .gl-container", place).forEach((part) => part.setAttribute("aria-hidden", "true"));
  const config = { responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", modeBarButtons: [["toImage", "resetScale2d"]] };
  const plots = all("figure > .plot").map((place) => ({ place, drawn: null }));
  function drawPlot(plot) {
    if (plot.drawn) return plot.drawn;
    const content = data(plot.place.parentElement), solid = Object.keys(content.layout).some((key) => key.startsWith("scene"));
    const buttons = solid ? { modeBarButtons: [["toImage", "resetCameraDefault3d"]] } : {};
    plot.drawn = window.Plotly.newPlot(plot.place, content.data, content.layout, { ...config, ...buttons }).then(() => {
      painters.push((dark) => window.Plotly.relayout(plot.place, themed(plot.place.layout, dark)));
      plot.place.dataset.drawn = "true";
      described(plot.place);
      return window.Plotly.relayout(plot.place, themed(plot.place.layout, isDark()));
    });
    return plot.drawn;
  }
  const animations = all("figure.animation").map((figure) => ({ place: figure, drawn: null }));
  function drawAnimation(animation) {
    if (animation.drawn) return animation.drawn;
    const moving = window.attractorAnimation(animation.place, data(animation.place), isDark);
    animation.drawn = moving.ready.then(() => { painters.push(moving.paint); animation.place.dataset.drawn = "true"; });
    return animation.drawn;
  }
  const drawAll = () => Promise.all([...plots.map(drawPlot), ...animations.map(drawAnimation)]);
  // figures are drawn when they come near the viewport or are opened
  const near = new IntersectionObserver((seen) => seen.filter((entry) => entry.isIntersecting).forEach((entry) => {
    near.unobserve(entry.target);
    const plot = plots.find((one) => one.place === entry.target);
    window.setTimeout(() => (plot ? drawPlot(plot) : drawAnimation(animations.find((one) => one.place === entry.target))), 0);
  }), { rootMargin: "900px" });
  window.addEventListener("load", () => [...plots, ...animations].forEach((one) => near.observe(one.place)));

  // heatmaps
  const sequential = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"];
  const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const mixed = (stops, part) => {
    const place = Math.min(Math.max(part, 0), 1) * (stops.length - 1), below = Math.min(Math.floor(place), stops.length - 2), rest = place - below;
    const [one, other] = [channels(stops[below]), channels(stops[below + 1])];
    return `rgb(${one.map((level, channel) => Math.round((1 - rest) * level + rest * other[channel])).join(",")})`;
  };
  const stops = (scale, dark) => (scale === "sequential" ? sequential : dark ? ["#4fb0f0", "#2c5f88", "#27303b", "#8a4a1d", "#f58a3c"] : ["#005f99", "#7fb2d3", "#f1f3f5", "#eda878", "#c24a00"]);
  const tip = document.getElementById("tip");
  function heatmap(figure) {
    const content = data(figure), grid = figure.querySelector(".grid"), panel = figure.querySelector(".panel"), width = content.columns.length;
    for (const measure of content.measures.filter((one) => one.kinds)) {
      measure.values = measure.values.map((place) => (place === null ? null : measure.kinds[place]));
      measure.shown = measure.values.map((label) => label ?? "none");
    }
    let chosen = content.measures[0], opened = null, shown = null;
    figure.classList.toggle("with-figure", Boolean(content.figures));
    grid.style.gridTemplateColumns = `auto repeat(${width}, minmax(18px, 1fr))`;
    const heads = make("div", { role: "row" });
    heads.append(make("span", { role: "columnheader" }, `${content.axes[0]} \\ ${content.axes[1]}`), ...content.columns.map((name, column) => make("span", { role: "columnheader", "aria-label": name }, column % Math.ceil(width / 16) ? "" : name)));
    grid.append(heads);
    const cells = content.rows.flatMap((name, row) => {
      const line = make("div", { role: "row" });
      const made = content.columns.map((_, column) => make("button", { type: "button", role: "gridcell", tabindex: row + column === 0 ? "0" : "-1", "aria-selected": "false" }));
      line.append(make("span", { role: "rowheader" }, name), ...made);
      grid.append(line);
      return made;
    });
    const where = (index) => `${content.axes[0]} ${content.rows[Math.floor(index / width)]}, ${content.axes[1]} ${content.columns[index % width]}`;
    const reading = (index) => `${where(index)}\n${chosen.name}: ${chosen.shown[index]}`;
    function colours(dark) {
      const ramp = chosen.scale === "category" ? null : stops(chosen.scale, dark);
      cells.forEach((cell, index) => {
        const here = chosen.values[index];
        cell.classList.toggle("none", here === null);
        cell.style.background = here === null ? "" : ramp ? mixed(ramp, (here - chosen.low) / (chosen.high - chosen.low)) : chosen.colours[here];
        cell.setAttribute("aria-label", reading(index).replace("\n", ", "));
      });
      const legend = figure.querySelector(".legend");
      legend.replaceChildren();
      if (ramp) {
        const bar = make("span", { class: "ramp" });
        bar.style.background = `linear-gradient(90deg, ${Array.from({ length: 9 }, (_, at) => mixed(ramp, at / 8)).join(",")})`;
        legend.append(make("span", {}, chosen.ends[0]), bar, make("span", {}, chosen.ends[1]));
      } else Object.entries(chosen.colours).forEach(([name, colour]) => {
        const entry = make("span"), swatch = make("i");
        swatch.style.background = colour;
        entry.append(swatch, name);
        legend.append(entry);
      });
      if (chosen.values.includes(null)) legend.append(make("span", {}, "hatched: not defined"));
    }
    function close() {
      if (opened !== null) { cells[opened].setAttribute("aria-selected", "false"); cells[opened].focus(); }
      opened = null;
      shown = null;
      panel.hidden = true;
    }
    const dress = (dark) => (shown && shown.layout ? window.Plotly.relayout(shown, themed(shown.layout, dark)) : null);
    function draw(index) {
      const own = content.figures.cells[Math.floor(index / width)][index % width], common = content.figures.common;
      const traces = own && own.map((trace, at) => ({ ...structuredClone(common[at] || {}), ...trace })), place = make("div", { class: "cell-figure", role: "group", "aria-label": `${content.figures.words}, ${where(index)}` });
      shown = traces ? place : null;
      if (!traces) return;
      panel.append(place);
      window.Plotly.newPlot(place, traces, JSON.parse(JSON.stringify(content.figures.layout)), config).then(() => window.Plotly.relayout(place, themed(place.layout, isDark()))).then(() => { described(place); place.dataset.drawn = "true"; });
    }
    function open(index) {
      if (opened !== null) cells[opened].setAttribute("aria-selected", "false");
      opened = index;
      cells[index].setAttribute("aria-selected", "true");
      const phrase = (words) => (typeof words === "number" ? content.phrases[words] : words);
      const rows = content.details ? content.details[Math.floor(index / width)][index % width].map((row) => row.map(phrase)) : content.measures.map((measure) => [measure.name, measure.shown[index]]);
      const head = make(figure.closest("section") ? "h3" : "h2", {}, where(index)), shut = make("button", { type: "button", class: "copy", "aria-label": "close the panel" }, "Close"), list = make("dl");
      shut.addEventListener("click", close);
      head.append(shut);
      rows.forEach(([label, text]) => list.append(make("dt", {}, label), make("dd", {}, text)));
      panel.replaceChildren(head, list);
      panel.hidden = false;
      if (content.figures) draw(index);
    }
    function point(cell, index) {
      const box = cell.getBoundingClientRect();
      tip.textContent = reading(index);
      tip.hidden = false;
      tip.style.left = `${Math.max(4, Math.min(box.left, window.innerWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${box.top - tip.offsetHeight - 6 > 0 ? box.top - tip.offsetHeight - 6 : box.bottom + 6}px`;
    }
    function move(index) {
      cells.forEach((cell) => cell.setAttribute("tabindex", "-1"));
      cells[index].setAttribute("tabindex", "0");
      cells[index].focus();
    }
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: width, ArrowUp: -width };
    cells.forEach((cell, index) => {
      cell.addEventListener("click", () => open(index));
      cell.addEventListener("pointerenter", () => point(cell, index));
      cell.addEventListener("focus", () => point(cell, index));
      ["pointerleave", "blur"].forEach((name) => cell.addEventListener(name, () => { tip.hidden = true; }));
      cell.addEventListener("keydown", (event) => {
        if (event.key === "Escape") { tip.hidden = true; close(); }
        const next = index + (steps[event.key] || 0);
        const row = Math.floor(index / width), stays = !["ArrowRight", "ArrowLeft"].includes(event.key) || Math.floor(next / width) === row;
        if (next !== index && next >= 0 && next < cells.length && stays) { event.preventDefault(); move(next); }
      });
    });
    const bar = figure.querySelector(".choose"), words = make("p");
    const buttons = content.measures.map((measure) => {
      const button = make("button", { type: "button", "aria-pressed": "false" }, measure.name);
      button.addEventListener("click", () => show(measure));
      return button;
    });
    function show(measure) {
      chosen = measure;
      buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(content.measures[at] === measure)));
      words.textContent = measure.words;
      colours(isDark());
    }
    if (buttons.length > 1) bar.append(...buttons);
    bar.append(words);
    painters.push((dark) => { colours(dark); return dress(dark); });
    show(chosen);
  }
  all("figure.heatmap").forEach(heatmap);

  // current section
  const links = all("nav a"), sections = all("main > section");
  function locate() {
    const here = sections.filter((section) => section.getBoundingClientRect().top < window.innerHeight * 0.35).pop() || sections[0];
    links.forEach((link, at) => link.classList.toggle("here", sections[at] === here));
  }
  if (links.length) { window.addEventListener("scroll", locate, { passive: true }); locate(); }

  // print: draw and open everything, in the light theme
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme || "";
    choose("light");
    all("details").forEach((fold) => { fold.open = true; });
    drawAll();
  });
  window.addEventListener("afterprint", () => { if (before) choose(before); else { delete root.dataset.theme; paint(); } });
  paint();
  document.body.dataset.ready = "true";
})();
