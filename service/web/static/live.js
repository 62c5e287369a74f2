// Follows a running job: uPlot draws what came with the page, and each trial that comes after.
"use strict";
(() => {
  const feed = document.querySelector("[data-points]");
  const figure = document.querySelector("figure[data-chart]");
  if (!feed || !figure) return;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const source = figure.querySelector('script[type="application/json"]');
  const room = figure.querySelector(".plot");
  if (!source || !room) {
    // NOTE: nothing was measured when the page was made: it is loaded again with the first trial.
    document.body.addEventListener("htmx:sseBeforeMessage", (event) => {
      if (event.target !== feed) return;
      event.preventDefault();
      location.reload();
    });
    return;
  }
  const chart = JSON.parse(source.textContent);
  const rows = chart.rows;
  const most = 4000;
  const data = () => [rows.map((r) => r[0]), rows.map((r) => r[3] === "ok" ? r[1] : null),
    rows.map((r) => r[3] === "pruned" ? r[1] : null), rows.map((r) => r[2])];
  const axis = () => ({ stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } });
  const dots = (label, stroke, size) => ({ label, stroke, paths: () => null, points: { show: true, size, fill: stroke } });
  const plot = new uPlot({
    width: room.clientWidth, height: 400, scales: { x: { time: false }, y: { distr: 3 } },
    axes: [{ ...axis(), label: chart.columns[0].heading }, { ...axis(), label: chart.columns[1].heading, size: 70 }],
    series: [{ label: "trial" }, dots("measured", colour("win"), 6), dots("pruned", colour("tie"), 4),
      { label: "best so far", stroke: colour("lose"), width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false } }],
  }, data(), room);
  new ResizeObserver(() => plot.setSize({ width: room.clientWidth, height: 400 })).observe(room);
  figure.dataset.drawn = "yes";
  document.body.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (event.target !== feed) return;
    event.preventDefault();
    let best = rows.length ? rows[rows.length - 1][2] : null;
    const last = rows.length ? rows[rows.length - 1][0] : -1;
    for (const [number, median, outcome] of JSON.parse(event.detail.data)) {
      if (number <= last) continue;
      if (outcome === "ok" && (best === null || median < best)) best = median;
      rows.push([number, median, best, outcome, ""]);
    }
    if (rows.length > most) rows.splice(0, rows.length - most);
    plot.setData(data());
  });
})();
