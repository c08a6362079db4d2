// Draws the page from the data in it. All text from logs goes through textContent or a canvas.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = data.runs;

  // Okabe and Ito's colours, which colour-blind readers can tell apart; dashes for paper.
  const schemes = {
    light: {
      runs: ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#b8860b", "#3a9bd9", "#444444"],
      kinds: ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#999999", "#d55e00", "#f0a878", "#6b4c9a"],
      ink: "#1b1f24", soft: "#5b6470", line: "#e3e6ea", card: "#ffffff",
    },
    dark: {
      runs: ["#56b4e9", "#f0863c", "#2ec499", "#d894b9", "#f0e442", "#8ab6ff", "#cccccc"],
      kinds: ["#3a94d6", "#e69f00", "#16a67c", "#cc79a7", "#8fd0f5", "#8d8d8d", "#e0703a", "#f3b48d", "#a58bd3"],
      ink: "#e6e9ed", soft: "#9aa4b1", line: "#2b3138", card: "#1c2026",
    },
  };
  const dashes = [[], [8, 4], [2, 3], [10, 3, 2, 3], [14, 4], [4, 4], [6, 2, 2, 2]];
  const markers = ["circle", "rect", "triangle", "rectRot", "star", "crossRot", "cross"];
  const splitKinds = ["compute", "link", "optimizer", "data", "other"];
  const memoryKinds = ["weights", "gradients", "optimizer", "buckets", "activations", "other", "host_weights", "host_optimizer", "files"];
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  let isPrinting = false;
  let scheme = schemes.light;
  let charts = [];

  // Text.

  const element = (tag, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children.filter((child) => child !== null));
    return made;
  };
  const byId = (id) => document.getElementById(id);
  const isNumber = (value) => typeof value === "number";
  const shorten = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}\u2026` : text);
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const digits = (value, count = 3) =>
    value.toLocaleString("en", { maximumSignificantDigits: count, useGrouping: true });
  const whole = (value) => Math.round(value).toLocaleString("en");
  const fixed = (value, places) => value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  const unitOf = (value) => Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(Math.abs(value), 1)) / 10)));
  const inUnit = (value, format) => `${format(value / 1024 ** unitOf(value))} ${units[unitOf(value)]}`;
  const threeDigits = { minimumSignificantDigits: 3, maximumSignificantDigits: 3 };
  const bytes = (value) => inUnit(value, (part) => (part === 0 ? "0" : part.toLocaleString("en", threeDigits)));
  const seconds = (value) => {
    if (value < 120) return `${digits(value)} s`;
    const minutes = Math.floor(value / 60);
    return minutes < 120
      ? `${minutes} min ${whole(value - 60 * minutes)} s`
      : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };
  const milliseconds = (value) => digits(1000 * value);
  const show = (value, format) => (isNumber(value) ? format(value) : "\u2013");
  const kindName = (kind) => kind.replaceAll("_", " ");
  /** Not on the device that computes. */
  const isBeside = (kind) => kind.startsWith("host") || kind === "files";

  const names = runs.map((run) => run.name || run.file.split("/").pop());
  const labels = names.map((name, i) =>
    names.filter((other) => other === name).length > 1 ? `${name} (${runs[i].file})` : name);
  const uniqueLabels = labels.map((label, i) =>
    labels.indexOf(label) === i ? label : `${label} #${labels.slice(0, i + 1).filter((other) => other === label).length}`);

  const known = (order, found) => [
    ...order.filter((kind) => found.has(kind)),
    ...[...found].filter((kind) => !order.includes(kind)).sort(),
  ];

  // Tables.

  const dashSwatch = (i) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("class", "swatch");
    svg.setAttribute("viewBox", "0 0 24 8");
    svg.setAttribute("aria-hidden", "true");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    line.setAttribute("d", "M0 4H24");
    line.setAttribute("stroke", scheme.runs[i % scheme.runs.length]);
    line.setAttribute("stroke-width", "3");
    line.setAttribute("stroke-dasharray", dashes[i % dashes.length].map((each) => each * 0.8).join(" "));
    svg.append(line);
    return svg;
  };
  const runName = (i) => element("span", { className: "run-name" }, dashSwatch(i),
    element("span", { textContent: uniqueLabels[i] }));
  const runHeadings = (first) => element("thead", {}, element("tr", {},
    element("th", { scope: "col", textContent: first }),
    ...runs.map((run, i) => element("th", { scope: "col" }, runName(i)))));

  const row = (name, cells, best = null) => {
    const values = cells.map(([value]) => value).filter(isNumber);
    const winner = best && runs.length > 1 && values.length > 1 ? Math[best](...values) : null;
    const isShared = values.every((value) => value === winner);
    return element("tr", {}, element("th", { scope: "row", textContent: name }),
      ...cells.map(([value, text]) => element("td", {
        textContent: text,
        className: value === winner && winner !== null && !isShared ? "best" : text === "\u2013" ? "none" : "",
      })));
  };
  const summaryRow = (name, key, format, best) =>
    row(name, runs.map((run) => [run.summary[key], show(run.summary[key], format)]), best);
  const groupRow = (name) => element("tr", { className: "group" },
    element("th", { scope: "rowgroup", textContent: name }), element("td", { colSpan: runs.length }));

  const isUninteresting = new Set(["log", "name", "save", "trace", "config"]);
  const differing = () => {
    const all = known([], new Set(runs.flatMap((run) => Object.keys(run.options))));
    return all.filter((name) => !isUninteresting.has(name) &&
      new Set(runs.map((run) => run.options[name] ?? "")).size > 1);
  };
  const stateOf = (run) => {
    if (run.end) return run.end;
    return run.summary.steps === run.planned_steps ? "done" : "not finished";
  };

  const fillComparison = () => {
    const body = element("tbody");
    const options = differing();
    if (options.length > 0) {
      body.append(groupRow("Options that differ"));
      for (const name of options) {
        body.append(row(name, runs.map((run) => [null, shorten(run.options[name] || "\u2013", 60)])));
      }
      body.append(groupRow("Results"));
    }
    body.append(
      summaryRow("validation loss", "validation_loss", (value) => fixed(value, 4), "min"),
      summaryRow("training loss", "training_loss", (value) => fixed(value, 4), "min"),
      summaryRow("tokens/s", "tokens_per_s", whole, "max"),
      summaryRow("peak memory per rank", "peak_bytes", bytes, "min"),
      summaryRow("sent per step", "sent_bytes", bytes, "min"),
      row("steps", runs.map((run) => [null, `${whole(run.summary.steps)} of ${show(run.planned_steps, whole)}`])),
      summaryRow("time", "time_s", seconds),
      row("ranks", runs.map((run) => [null, show(run.ranks, whole)])),
      row("parameters", runs.map((run) => [null, show(run.parameters, whole)])),
      row("device", runs.map((run) => [null, run.facts.device || "\u2013"])),
      row("state", runs.map((run) => [null, stateOf(run)])),
    );
    byId("comparison").replaceChildren(runHeadings(""), body);
    byId("comparison-note").textContent =
      `Validation loss is the last one; training loss is the mean of the last ${data.last_steps} steps; ` +
      "tokens/s is the median step's; peak memory is the highest rank's; sent is what rank 0 sent in a mean step." +
      (runs.length > 1 ? " The best of a row is marked by a dot." : "");
  };

  const fillOptions = () => {
    byId("options").replaceChildren(...runs.map((run, i) => {
      const list = element("dl");
      const all = { ...run.options, torch: run.facts.torch, fairshard: run.facts.fairshard, file: run.file };
      for (const [name, value] of Object.entries(all)) {
        list.append(element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value || "\u2013" })));
      }
      return element("details", {}, element("summary", { textContent: `All options of ${uniqueLabels[i]}` }), list);
    }));
  };

  const fillSplit = (kinds) => {
    const body = element("tbody");
    const totals = runs.map((run) => sum(Object.values(run.split_s).filter(isNumber)));
    for (const kind of kinds) {
      body.append(row(kind, runs.map((run, i) => {
        const value = run.split_s[kind];
        return [null, show(value, (time) => `${milliseconds(time)} ms \u00b7 ${fixed(100 * time / totals[i], 0)} %`)];
      })));
    }
    body.append(row("step", totals.map((total) => [null, total > 0 ? `${milliseconds(total)} ms` : "\u2013"])));
    byId("split-table").replaceChildren(runHeadings(""), body);
  };

  // In large runs only ranks that the others may have waited for.
  const mostWaitRows = 16;
  const waitTable = (parts) => {
    const ranks = parts[0].seconds.map((each, rank) => rank);
    const total = (rank) => sum(parts.map((part) => part.seconds[rank] ?? 0));
    const shown = [...ranks].sort((a, b) => total(a) - total(b)).slice(0, mostWaitRows).sort((a, b) => a - b);
    const stepsOf = (part) => `${whole(part.first_step)}\u2013${whole(part.last_step)}`;
    const head = element("thead", {}, element("tr", {},
      ...["rank", ...parts.map(stepsOf)].map((name) => element("th", { scope: "col", textContent: name }))));
    const cell = (part, rank) => {
      const least = Math.min(...part.seconds.filter(isNumber));
      return element("td", {
        textContent: show(part.seconds[rank], (value) => `${milliseconds(value)} ms`),
        className: ranks.length > 1 && part.seconds[rank] === least ? "least" : "",
      });
    };
    const body = element("tbody", {}, ...shown.map((rank) => element("tr", {},
      element("th", { scope: "row", textContent: String(rank) }), ...parts.map((part) => cell(part, rank)))));
    const hidden = ranks.length - shown.length;
    return element("figure", {}, element("div", { className: "wide" }, element("table", {}, head, body)),
      hidden > 0 ? element("p", { className: "note", textContent: `${whole(hidden)} more ranks have waited longer.` }) : null);
  };
  const fillWaits = () => {
    const some = runs.map((run, i) => i).filter((i) => runs[i].waits.length > 0);
    byId("wait-tables").replaceChildren(...some.map((i) => {
      const table = waitTable(runs[i].waits);
      table.prepend(element("figcaption", {}, element("b", {}, runName(i))));
      return table;
    }));
    byId("waits-note").textContent = some.length === 0 ? "The logs do not say what ranks have waited." :
      "What each rank has waited for others in a mean step, from the beginning of the run to its end. " +
      "The rank that waits least, which is marked, is the one that the others wait for: if it is always the same one, look at its machine.";
  };

  const fillEvents = () => {
    const all = runs.flatMap((run, i) => run.events.map((event) => ({ ...event, run: i })));
    if (all.length === 0) {
      byId("event-table").replaceWith(element("p", { id: "event-table", className: "note", textContent: "None." }));
      return;
    }
    const head = element("thead", {}, element("tr", {},
      ...["run", "step", "time", "what", "detail"].map((name) =>
        element("th", { scope: "col", textContent: name, className: ["what", "detail"].includes(name) ? "text" : "" }))));
    const body = element("tbody", {}, ...all.map((event) => element("tr", {},
      element("th", { scope: "row" }, runName(event.run)),
      element("td", { textContent: whole(event.step) }),
      element("td", { textContent: show(event.time_s, seconds) }),
      element("td", { className: "text", textContent: event.what }),
      element("td", { className: "text", textContent: event.detail }))));
    byId("event-table").replaceChildren(head, body);
  };

  // Plots.

  const niceStep = (largest, base) => {
    // Steps of 1, 2 or 5 of a unit, about five of them; for bytes the units are powers of 1024.
    const unit = base ** Math.floor(Math.log(Math.max(largest, 1)) / Math.log(base));
    const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].map((each) => each * unit);
    return steps.find((step) => largest / step <= 5) ?? steps.at(-1);
  };
  const byteTicks = (largest) => ({ stepSize: Math.max(1, niceStep(largest, 1024)), callback: (value) => inUnit(value, digits) });
  const axis = (title, extra = {}) => ({
    border: { color: scheme.line },
    grid: { color: scheme.line, borderColor: scheme.line, tickColor: scheme.line },
    title: { display: Boolean(title), text: title, color: scheme.soft },
    ...extra,
    ticks: { color: scheme.soft, maxRotation: 0, autoSkipPadding: 12, ...extra.ticks },
  });
  const legendItems = (chart) => Chart.defaults.plugins.legend.labels.generateLabels(chart).map((item) =>
    ({ ...item, lineDash: chart.data.datasets[item.datasetIndex].borderDash ?? [], lineWidth: 2 }));
  const legend = (extra = {}) => ({
    position: "bottom",
    labels: { color: scheme.ink, usePointStyle: true, pointStyleWidth: 26, boxHeight: 8, padding: 14, generateLabels: legendItems, ...extra },
  });
  const draw = (id, type, chartData, options, summary) => {
    const canvas = typeof id === "string" ? byId(id) : id;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", summary);
    charts.push(new Chart(canvas, {
      type,
      data: chartData,
      options: {
        animation: false, responsive: true, maintainAspectRatio: false, normalized: true,
        devicePixelRatio: Math.max(2, window.devicePixelRatio), color: scheme.ink, locale: "en", ...options,
      },
    }));
  };
  const sayNothing = (id, sentence) => {
    const plot = byId(id).parentElement;
    plot.classList.add("empty");
    plot.replaceChildren(sentence);
  };
  const pairs = (curve, x) => curve[x].map((at, i) => ({ x: at, y: curve.value[i] }))
    .filter((point) => isNumber(point.x));
  const line = (i, curve, x, extra = {}) => {
    const points = pairs(curve, x);
    const color = scheme.runs[i % scheme.runs.length];
    return {
      label: shorten(uniqueLabels[i], 36), data: points, borderColor: color, backgroundColor: color,
      borderWidth: 2, borderDash: dashes[i % dashes.length], borderJoinStyle: "round",
      pointRadius: points.length === 1 ? 4 : 0, pointHoverRadius: 4, pointStyle: "line", ...extra,
    };
  };
  const fade = (color) => `${color}59`;

  /** One line per run; the points themselves faint behind their running mean. */
  const curveSets = (key, x, isSmooth) => runs.flatMap((run, i) => {
    if (!isSmooth || run[key].points.value.length < 20) return [line(i, run[key].points, x)];
    const faint = fade(scheme.runs[i % scheme.runs.length]);
    return [
      line(i, run[key].trend, x, { order: 0 }),
      line(i, run[key].points, x, { borderColor: faint, borderWidth: 1, borderDash: [], order: 1, isBehind: true, isNamed: false }),
    ];
  });
  const markerSets = (x) => runs.flatMap((run, i) => {
    if (run.validation.value.length === 0) return [];
    const color = scheme.runs[i % scheme.runs.length];
    return [line(i, run.validation, x, {
      label: `${shorten(uniqueLabels[i], 24)}, validation`, showLine: false, pointRadius: 5, pointHoverRadius: 6,
      pointStyle: markers[i % markers.length], backgroundColor: scheme.card, borderColor: color, borderDash: [], order: -1,
      borderWidth: 2, isNamed: false,
    })];
  });
  const curveOptions = (x, y, format) => ({
    interaction: { mode: "nearest", axis: "x", intersect: false },
    scales: {
      x: axis(x.title, { type: "linear", ticks: { callback: x.format }, ...x.extra }),
      y: axis("", y),
    },
    plugins: {
      legend: legend({ filter: (item, chart) => chart.datasets[item.datasetIndex].isNamed !== false }),
      tooltip: {
        filter: (item) => !item.dataset.isBehind,
        callbacks: {
          title: (items) => (items.length > 0 ? `${x.name} ${x.format(items[0].parsed.x)}` : ""),
          label: (item) => ` ${item.dataset.label}: ${format(item.parsed.y)}`,
        },
      },
    },
  });
  const hasPoints = (key) => runs.some((run) => run[key].points.value.some(isNumber));
  const steps = { name: "step", title: "step", format: (value) => value.toLocaleString("en") };
  const longest = Math.max(1, ...runs.map((run) => run.summary.time_s ?? 0));
  const [timeUnit, timeName] = longest > 7200 ? [3600, "hours"] : longest > 180 ? [60, "minutes"] : [1, "seconds"];
  const times = {
    name: "after", title: timeName,
    format: (value) => digits(value / timeUnit),
    extra: { ticks: { stepSize: niceStep(longest / timeUnit, 10) * timeUnit, callback: (value) => digits(value / timeUnit) } },
  };

  const drawLoss = () => {
    if (!hasPoints("loss")) {
      for (const id of ["loss-by-step", "loss-by-time"]) sayNothing(id, "The logs have no losses yet.");
      return;
    }
    const isSmooth = byId("smooth").checked;
    const y = { type: byId("logarithmic").checked ? "logarithmic" : "linear" };
    for (const [id, key, x] of [["loss-by-step", "step", steps], ["loss-by-time", "time_s", times]]) {
      draw(id, "line", { datasets: [...curveSets("loss", key, isSmooth), ...markerSets(key)] },
        curveOptions(x, y, (value) => fixed(value, 4)), `Loss by ${x.name} for ${runs.length} run(s)`);
    }
    const lost = runs.filter((run) => run.loss.points.value.some((value) => value === null)).length;
    byId("loss-note").textContent = "Markers are losses on text that is held out." +
      (lost > 0 ? " Where a curve has a gap, the loss was not a finite number." : "");
  };
  const drawSpeed = () => {
    if (hasPoints("tokens_per_s")) {
      draw("throughput", "line", { datasets: curveSets("tokens_per_s", "step", true) },
        curveOptions(steps, { beginAtZero: true }, (value) => `${whole(value)} tokens/s`), "Tokens per second by step");
    } else {
      sayNothing("throughput", "The logs have no throughput yet.");
    }
    const kinds = known(splitKinds, new Set(runs.flatMap((run) => Object.keys(run.split_s))));
    if (kinds.length === 0) {
      sayNothing("split", "The logs do not say where the time of a step went.");
      byId("split-table").replaceChildren();
      return;
    }
    draw("split", "bar", {
      labels: uniqueLabels.map((label) => shorten(label, 18)),
      datasets: kinds.map((kind, k) => bar(kindName(kind), kindColor(splitKinds, kind, k), runs.map((run) => 1000 * (run.split_s[kind] ?? 0)))),
    }, {
      indexAxis: "y",
      scales: { x: axis("ms", { stacked: true }), y: axis("", { stacked: true, grid: { display: false } }) },
      plugins: {
        legend: legend({ pointStyleWidth: 12 }),
        tooltip: { callbacks: { label: (item) => ` ${item.dataset.label}: ${digits(item.parsed.x)} ms` } },
      },
    }, "Mean time of a step by kind");
    fillSplit(kinds);
  };

  const kindColor = (order, kind, k) => {
    const place = order.indexOf(kind);
    return scheme.kinds[(place < 0 ? order.length + k : place) % scheme.kinds.length];
  };
  const bar = (label, color, values, extra = {}) => ({
    label, data: values, backgroundColor: color, borderColor: scheme.card, borderWidth: 1, maxBarThickness: 64,
    pointStyle: "rect", ...extra,
  });
  const memoryTable = (run, kinds) => {
    const head = element("thead", {}, element("tr", {},
      ...["rank", ...kinds.map(kindName), "peak"].map((name) => element("th", { scope: "col", textContent: name }))));
    const body = element("tbody", {}, ...run.memory.map((memory) => element("tr", {},
      element("th", { scope: "row", textContent: String(memory.rank) }),
      ...kinds.map((kind) => element("td", { textContent: show(memory.bytes[kind], bytes) })),
      element("td", { textContent: show(memory.peak_bytes, bytes) }))));
    return element("details", {}, element("summary", { textContent: "Numbers" }),
      element("div", { className: "wide" }, element("table", {}, head, body)));
  };
  const deviceTotal = (memory) => sum(Object.entries(memory.bytes)
    .filter(([kind, value]) => !isBeside(kind) && isNumber(value)).map(([, value]) => value));
  const hostTotal = (memory) => sum(Object.entries(memory.bytes)
    .filter(([kind, value]) => isBeside(kind) && isNumber(value)).map(([, value]) => value));
  const drawRunMemory = (canvas, run, kinds, largest, label) => {
    const datasets = kinds.map((kind, k) => bar(kindName(kind), kindColor(memoryKinds, kind, k),
      run.memory.map((memory) => memory.bytes[kind] ?? 0), { stack: isBeside(kind) ? "host" : "device", order: 1 }));
    datasets.push({
      type: "line", label: "measured peak", data: run.memory.map((memory) => memory.peak_bytes), showLine: false,
      pointStyle: "line", pointRadius: run.memory.length > 12 ? 5 : 18, pointHoverRadius: 18, pointBorderWidth: 2,
      borderColor: scheme.ink, backgroundColor: scheme.ink, stack: "peak", order: 0,
    });
    draw(canvas, "bar", { labels: run.memory.map((memory) => `rank ${memory.rank}`), datasets }, {
      scales: {
        x: axis("", { stacked: true, grid: { display: false } }),
        y: axis("", { stacked: true, beginAtZero: true, suggestedMax: largest, ticks: byteTicks(largest) }),
      },
      plugins: {
        legend: legend({ pointStyleWidth: 12 }),
        tooltip: { callbacks: { label: (item) => ` ${item.dataset.label}: ${bytes(item.parsed.y)}` } },
      },
    }, `Memory by kind per rank of ${label}`);
  };
  const drawMemory = () => {
    const holder = byId("memory-plots");
    const all = runs.flatMap((run) => run.memory);
    if (all.length === 0) {
      holder.replaceChildren(element("p", { className: "note", textContent: "The logs have no records of memory." }));
      return;
    }
    const largest = Math.max(...all.map((memory) => Math.max(deviceTotal(memory), hostTotal(memory), memory.peak_bytes ?? 0)));
    // All of them are in place before the first is drawn, so that each knows its width.
    const canvases = runs.map(() => element("canvas"));
    const kindsOf = (run) => known(memoryKinds, new Set(run.memory.flatMap((memory) => Object.keys(memory.bytes))));
    holder.replaceChildren(...runs.map((run, i) => element("figure", {},
      element("figcaption", {}, element("b", {}, runName(i))),
      ...(run.memory.length === 0
        ? [element("div", { className: "plot empty", textContent: "no records" })]
        : [element("div", { className: "plot" }, canvases[i]), memoryTable(run, kindsOf(run))]))));
    runs.forEach((run, i) => {
      if (run.memory.length > 0) drawRunMemory(canvases[i], run, kindsOf(run), largest, uniqueLabels[i]);
    });
    byId("memory-note").textContent = "The largest of each kind over the run; all plots have the same scale. " +
      "The mark is the highest total that the allocator counted within a step: kinds need not be largest at one time. " +
      "What lies in host memory or in files has a bar of its own.";
  };
  const drawWire = () => {
    if (!hasPoints("sent_bytes")) {
      sayNothing("sent", "The logs have no bytes on the wire.");
      return;
    }
    const largest = Math.max(1, ...runs.flatMap((run) => run.sent_bytes.points.value.filter(isNumber)));
    draw("sent", "line", { datasets: curveSets("sent_bytes", "step", false) },
      curveOptions(steps, { beginAtZero: true, ticks: byteTicks(largest) }, bytes), "Bytes sent by rank 0 in each step");
  };

  // All of it.

  const drawAll = () => {
    for (const chart of charts) chart.destroy();
    charts = [];
    scheme = darkness.matches && !isPrinting ? schemes.dark : schemes.light;
    Chart.defaults.font.family = getComputedStyle(document.documentElement).fontFamily;
    Chart.defaults.font.size = isPrinting ? 10 : 12;
    fillComparison();
    fillEvents();
    fillWaits();
    drawLoss();
    drawSpeed();
    drawMemory();
    drawWire();
  };
  const setPrinting = (now) => {
    if (now === isPrinting) return;
    isPrinting = now;
    document.body.classList.toggle("printing", now);
    drawAll();
    for (const details of document.querySelectorAll("details")) details.open = now;
  };

  document.title = runs.length === 1 ? `${uniqueLabels[0]} \u2013 fairshard report` : `${runs.length} runs \u2013 fairshard report`;
  byId("subtitle").textContent = runs.length === 1 ? uniqueLabels[0] : uniqueLabels.join(" \u00b7 ");
  document.querySelector("nav").append(...[...document.querySelectorAll("section")].map((section) =>
    element("a", { href: `#${section.id}`, textContent: section.querySelector("h2").textContent })));
  byId("warnings").append(...runs.flatMap((run) => run.warnings)
    .map((warning) => element("p", { className: "warning", textContent: warning })));
  const thinned = runs.filter((run) => run.is_thinned).length;
  byId("thinning").textContent = thinned === 0 ? "Curves show every step." :
    `Curves of more than ${whole(data.curve_points)} steps are thinned: of each stretch the smallest and the largest value are drawn. ` +
    "Tables and running means count every step.";
  fillOptions();
  drawAll();
  for (const id of ["smooth", "logarithmic"]) byId(id).addEventListener("change", drawAll);
  darkness.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => setPrinting(true));
  addEventListener("afterprint", () => setPrinting(false));
})();
