// Charts of numbers that the page has as tables: uPlot draws the page's own JSON form.
"use strict";
(() => {
  const HEIGHT = 230, EVERY_MS = 5000;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const drawn = new Map();
  const axis = () => document.querySelector("[data-axis]")?.value || "time";

  async function load() {
    try {
      const answer = await fetch(location.href, {headers: {Accept: "application/json"}});
      return answer.ok ? await answer.json() : null;
    } catch {
      return null; // the server is away: what is drawn stays
    }
  }

  // One chart is one or two tables: each has times, perhaps steps, and lines.
  function tables(page) {
    const charts = new Map();
    for (const chart of page.content?.charts || []) charts.set(chart.name, [chart]);
    for (const pair of page.curves || []) charts.set(pair.name, [pair.left, pair.right]);
    return charts;
  }

  function columns(parts) {
    const bySteps = axis() === "step" && parts.every((part) => !part || part.steps.length);
    const paired = parts.length > 1;
    const joined = parts.filter(Boolean).map((part) => {
      const begin = paired ? part.atMs[0] : 0;
      const xs = bySteps ? part.steps : part.atMs.map((at) => (at - begin) / 1000);
      // A step that is repeated after a restart is shown once, as it was computed last.
      const rows = new Map();
      xs.forEach((x, n) => { if (x !== null) rows.set(x, part.lines.map((line) => line.values[n])); });
      const sorted = [...rows.keys()].sort((a, b) => a - b);
      return [sorted, ...part.lines.map((_, i) => sorted.map((x) => rows.get(x)[i]))];
    });
    return {bySteps, paired, data: joined.length > 1 ? uPlot.join(joined) : joined[0]};
  }

  function markPlaces(marks, parts, bySteps) {
    if (!bySteps) return marks.map((mark) => mark.atMs / 1000);
    const {atMs, steps} = parts[0];
    return marks.map((mark) => {
      const after = atMs.findIndex((at) => at >= mark.atMs);
      return after < 0 ? null : steps[after];
    });
  }

  function drawMarks(plot, places) {
    const {ctx, bbox} = plot;
    ctx.save();
    ctx.strokeStyle = colour("--warn");
    ctx.setLineDash([4, 4]);
    for (const place of places) {
      if (place === null || place < plot.scales.x.min || place > plot.scales.x.max) continue;
      const x = Math.round(plot.valToPos(place, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function options(figure, parts, marks, {bySteps, paired}) {
    const lines = parts.flatMap((part, n) => (part ? part.lines.map((line) => ({line, n})) : []));
    const isBand = parts[0]?.isBand && !paired;
    const name = ({line, n}) => (paired ? figure.dataset[n ? "right" : "left"] : line.name);
    const ink = colour("--dim"), grid = {stroke: colour("--line"), width: 1};
    const places = paired ? [] : markPlaces(marks, parts, bySteps);
    return {
      width: figure.clientWidth, height: HEIGHT, cursor: {sync: {key: paired ? "" : "curves"}},
      scales: {x: {time: !bySteps && !paired}},
      axes: [{stroke: ink, grid, ticks: grid}, {stroke: ink, grid, ticks: grid, size: 70}],
      bands: isBand ? [{series: [3, 1], fill: colour("--soft")}] : [],
      series: [
        {label: bySteps ? figure.dataset.step : figure.dataset.time},
        ...lines.map((one, n) => ({
          label: name(one), stroke: colour(isBand ? ["--c4", "--c1", "--c4"][n] : `--c${n + 1}`),
          width: isBand && n !== 1 ? 1 : 2, dash: n % 2 && paired ? [6, 4] : [], spanGaps: true,
          points: {show: parts.some((part) => part && part.atMs.length < 40)},
        })),
      ],
      hooks: {draw: [(plot) => drawMarks(plot, places)]},
    };
  }

  function draw(page) {
    const charts = tables(page), marks = page.content?.marks || [];
    for (const figure of document.querySelectorAll("[data-chart]")) {
      const parts = charts.get(figure.dataset.chart);
      if (!parts) continue;
      const shown = columns(parts), box = figure.querySelector("[data-plot]");
      drawn.get(box)?.destroy();
      drawn.set(box, new uPlot(options(figure, parts, marks, shown), shown.data, box));
      box.hidden = false;
    }
  }

  async function refresh() {
    const page = await load();
    if (page) draw(page);
    return page;
  }

  if (!window.uPlot || !document.querySelector("[data-chart]")) return;
  let last = null;
  refresh().then((page) => { last = page; });
  document.querySelector("[data-axis]")?.addEventListener("change", () => { if (last) draw(last); });
  addEventListener("resize", () => { if (last) draw(last); });
  if (!document.querySelector("[data-pause]")) return; // it does not change
  setInterval(async () => {
    const isPaused = document.querySelector("[data-pause]").getAttribute("aria-pressed") === "true";
    // A chart under the pointer, or one that is being zoomed, stays as it is.
    if (document.hidden || isPaused || document.querySelector("[data-plot]:hover")) return;
    last = (await refresh()) || last;
  }, EVERY_MS);
})();
