// Draws the figures of a page from the JSON beside them, and saves them as PNG and SVG.
"use strict";
(() => {
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue("--" + name).trim();
  const palette = () => matchMedia("(prefers-color-scheme: dark)").matches
    ? ["#56b4e9", "#f0964f", "#4fd1a5", "#e9c46a", "#cc79a7", "#a6abb3", "#f0e442", "#8fb8ff"]
    : ["#0072b2", "#b34700", "#00795a", "#8a6200", "#a0457b", "#5a5d63", "#3d5a80", "#444"];
  const symbols = ["circle", "triangle", "rect", "diamond", "roundRect", "pin", "arrow", "circle"];
  const verdicts = () => ({ kernel: colour("win"), vendor: colour("lose"), tie: colour("tie"), disturbed: colour("warn"), alone: colour("tie") });
  const short = (value) => typeof value === "number" ? Number(value.toPrecision(4)).toLocaleString("en") : String(value);

  const described = (chart, row) => chart.columns.map((column, i) =>
    row[i] === null || row[i] === undefined ? null : `${column.heading}: ${short(row[i])}`).filter(Boolean).join("\n");

  const axis = (chart, index, more) => ({
    name: chart.columns[index].heading, nameLocation: "middle", nameGap: 34, scale: true,
    nameTextStyle: { color: colour("soft") }, axisLabel: { color: colour("soft"), hideOverlap: true },
    axisLine: { lineStyle: { color: colour("tie") } }, splitLine: { lineStyle: { color: colour("line") } }, ...more,
  });

  const common = () => ({
    animation: false, color: palette(), backgroundColor: "transparent",
    textStyle: { fontFamily: style().fontFamily, color: colour("text") },
    // NOTE: rich text is drawn on the canvas; HTML would need styles in markup, which the policy refuses.
    tooltip: { renderMode: "richText", confine: true, backgroundColor: colour("raised"), borderColor: colour("line"),
      textStyle: { color: colour("text"), fontSize: 12 } },
    grid: { left: 40, right: 24, top: 36, bottom: 44, containLabel: true },
    legend: { textStyle: { color: colour("text") }, type: "scroll", top: 0 },
  });

  // NOTE: a logarithmic axis of its own choice ends at powers of ten, far from most times.
  const log = (chart, at, dim) => {
    const lines = (chart.lines || []).flatMap((line) => line.points.map((point) => point[dim]));
    const values = [...chart.rows.map((row) => row[at]), ...lines].filter((value) => value > 0);
    return { type: "log", min: Math.min(...values) * .9, max: Math.max(...values) * 1.1,
      axisLabel: { formatter: short, color: colour("soft"), showMinLabel: true, showMaxLabel: true, hideOverlap: true } };
  };

  const groups = (chart) => {
    if (chart.group === undefined) return [["", chart.rows]];
    const found = new Map();
    for (const row of chart.rows) {
      const name = String(row[chart.group]);
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(row);
    }
    return [...found].slice(0, 12);
  };

  const lines = (chart) => (chart.lines || []).map((line) => ({
    type: "line", name: line.name, data: line.points, showSymbol: false, silent: true,
    lineStyle: { type: line.dashed ? "dashed" : "solid", width: 1.5 }, tooltip: { show: false },
    endLabel: { show: false },
  }));

  const scatter = (chart) => {
    const points = groups(chart).map(([name, rows], at) => ({
      type: "scatter", name, symbol: symbols[at % symbols.length], symbolSize: rows.length > 500 ? 5 : 8,
      data: rows.map((row) => ({ value: [row[chart.x], row[chart.y]], row, itemStyle: { opacity: .75 } })),
    }));
    const kind = chart.categories ? { type: "category" } : chart.logx ? log(chart, chart.x, 0) : { type: "value" };
    const across = chart.logy ? log(chart, chart.y, 1) : { type: "value" };
    return { ...common(), xAxis: axis(chart, chart.x, kind), yAxis: axis(chart, chart.y, { ...across, nameGap: 52 }), series: [...points, ...lines(chart)],
      tooltip: { ...common().tooltip, formatter: (at) => at.data.row ? described(chart, at.data.row) : at.seriesName } };
  };

  const steps = (chart) => {
    const [x, [median, best]] = [chart.x, chart.y];
    const drawn = scatter({ ...chart, y: median, group: 3, logy: chart.log, rows: chart.rows.filter((row) => row[median] !== null) });
    drawn.series.push({ type: "line", step: "end", name: "best so far", showSymbol: false,
      data: chart.rows.filter((row) => row[best] !== null).map((row) => [row[x], row[best]]), lineStyle: { width: 2 } });
    return drawn;
  };

  const intervals = (chart) => {
    const [label, value, low, high, verdict] = chart.use;
    const rows = [...chart.rows].reverse();
    return { ...common(), grid: { ...common().grid, left: 8 },
      yAxis: { type: "category", data: rows.map((row) => row[label]), axisLabel: { color: colour("soft"), width: 210, overflow: "truncate" } },
      // NOTE: logarithmic, so that a half and twice are as far from 1.
      xAxis: axis(chart, value, { type: "log", logBase: 2, min: Math.min(.95, ...rows.map((row) => row[low])) * .98,
        max: Math.max(1.05, ...rows.map((row) => row[high])) * 1.02, axisLabel: { formatter: short, color: colour("soft"), showMinLabel: false, showMaxLabel: false } }),
      tooltip: { ...common().tooltip, formatter: (at) => described(chart, rows[at.dataIndex]) },
      series: [{ type: "custom", encode: { x: [1, 2, 3], y: 0 },
        data: rows.map((row, i) => [i, row[value], row[low], row[high]]),
        renderItem: (_, api) => {
          const y = api.coord([api.value(1), api.value(0)])[1];
          const [from, at, to] = [2, 1, 3].map((d) => api.coord([api.value(d), api.value(0)])[0]);
          const stroke = verdicts()[rows[api.value(0)][verdict]] || colour("win");
          const line = (shape) => ({ type: "line", shape, style: { stroke, lineWidth: 2 } });
          const mark = rows[api.value(0)][verdict] === "vendor"
            ? { type: "rect", shape: { x: at - 4, y: y - 4, width: 8, height: 8 }, style: { fill: stroke } }
            : { type: "circle", shape: { cx: at, cy: y, r: 4.5 }, style: { fill: stroke } };
          return { type: "group", children: [line({ x1: from, y1: y, x2: to, y2: y }),
            line({ x1: from, y1: y - 4, x2: from, y2: y + 4 }), line({ x1: to, y1: y - 4, x2: to, y2: y + 4 }), mark] };
        },
        markLine: { silent: true, symbol: "none", data: [{ xAxis: 1 }], label: { show: false }, lineStyle: { color: colour("text"), type: "dashed" } } }] };
  };

  const bars = (chart) => {
    const rows = [...chart.rows].reverse();
    return { ...common(), yAxis: { type: "category", data: rows.map((row) => row[chart.x]), axisLabel: { color: colour("soft") } },
      xAxis: axis(chart, chart.y, { type: "value", min: 0 }),
      tooltip: { ...common().tooltip, formatter: (at) => described(chart, rows[at.dataIndex]) },
      series: [{ type: "bar", data: rows.map((row) => row[chart.y]), barMaxWidth: 18 }] };
  };

  const grid = (chart) => {
    const [x, y, state] = chart.use;
    const names = (at) => [...new Set(chart.rows.map((row) => String(row[at])))];
    const [xs, ys] = [names(x), names(y)];
    const shades = { tuned: colour("win"), near: palette()[2], vendor: colour("lose"), stale: colour("warn"), missing: colour("tie") };
    const glyphs = { tuned: "▲", near: "≈", vendor: "▼", stale: "!", missing: "·" };
    return { ...common(), grid: { ...common().grid, top: 16 },
      xAxis: { ...axis(chart, x, { type: "category", data: xs }), splitLine: { show: false } },
      yAxis: { type: "category", data: ys, axisLabel: { color: colour("soft"), width: 220, overflow: "truncate" } },
      tooltip: { ...common().tooltip, formatter: (at) => described(chart, at.data.row) },
      series: [{ type: "custom", encode: { x: 0, y: 1 },
        data: chart.rows.map((row) => ({ value: [xs.indexOf(String(row[x])), ys.indexOf(String(row[y]))], row })),
        renderItem: (item, api) => {
          const row = chart.rows[item.dataIndex];
          const [cx, cy] = api.coord([api.value(0), api.value(1)]);
          const [w, h] = api.size([1, 1]).map((side) => Math.max(2, side - 3));
          return { type: "group", children: [
            { type: "rect", shape: { x: cx - w / 2, y: cy - h / 2, width: w, height: h, r: 2 }, style: { fill: shades[row[state]], opacity: .85 } },
            { type: "text", style: { text: glyphs[row[state]], x: cx, y: cy, align: "center", verticalAlign: "middle", fill: colour("ground"), fontSize: 12 } }] };
        } }] };
  };

  const parallel = (chart) => ({
    ...common(),
    parallel: { left: 40, right: 60, top: 60, bottom: 30, parallelAxisDefault: { nameTextStyle: { color: colour("text"), fontSize: 11 },
      nameRotate: chart.columns.length > 8 ? 20 : 0, axisLabel: { color: colour("soft") }, axisLine: { lineStyle: { color: colour("tie") } },
      areaSelectStyle: { width: 18, borderColor: colour("link"), color: colour("link") } } },
    parallelAxis: chart.columns.map((column, dim) => {
      const names = chart.names[dim];
      return names ? { dim, name: column.name, type: "category", data: names } : { dim, name: column.heading, type: chart.log === dim ? "log" : "value", scale: true };
    }),
    visualMap: { dimension: chart.colour, min: chart.low, max: chart.high, calculable: false, orient: "horizontal", top: 0, left: "center", itemHeight: 120,
      text: [short(chart.high) + " µs", short(chart.low) + " µs"], textStyle: { color: colour("text") },
      inRange: { color: matchMedia("(prefers-color-scheme: dark)").matches ? ["#f0e442", "#56b4e9", "#3d3f63"] : ["#00204d", "#7b7b78", "#e6d55a"] } },
    series: [{ type: "parallel", smooth: false, lineStyle: { width: 1.2, opacity: .45 }, inactiveOpacity: .03, activeOpacity: .8,
      data: chart.rows.map((row) => row.map((cell, dim) => chart.names[dim] ? String(cell) : cell)) }],
    tooltip: { show: false },
  });

  const kinds = { steps, scatter, intervals, bars, grid, parallel };
  const height = (chart) => {
    if (chart.kind === "intervals" || chart.kind === "bars") return 110 + 22 * chart.rows.length;
    if (chart.kind === "grid") return 120 + 30 * new Set(chart.rows.map((row) => row[chart.use[1]])).size;
    return chart.kind === "parallel" ? 460 : 400;
  };
  window.chartOption = (chart) => kinds[chart.kind](chart);

  const save = (name, url) => {
    const link = document.createElement("a");
    [link.href, link.download] = [url, name];
    link.click();
  };
  const svgOf = (chart, width) => {
    const off = echarts.init(null, null, { renderer: "svg", ssr: true, width, height: height(chart) });
    off.setOption({ ...window.chartOption(chart), backgroundColor: colour("ground") });
    const text = off.renderToSVGString();
    off.dispose();
    return text;
  };

  document.querySelectorAll("figure[data-chart]").forEach((figure) => {
    const source = figure.querySelector('script[type="application/json"]');
    if (!source) return;
    const chart = JSON.parse(source.textContent);
    const room = figure.querySelector(".plot");
    room.style.height = height(chart) + "px";
    let drawn;
    const draw = () => {
      if (drawn) drawn.dispose();
      drawn = echarts.init(room, null, { renderer: "canvas" });
      drawn.setOption(window.chartOption(chart));
      drawn.on("brushselected", () => {});
      drawn.on("click", (at) => {
        const row = at.data && at.data.row || (chart.kind === "intervals" && [...chart.rows].reverse()[at.dataIndex]);
        if (row && chart.to && row[chart.link]) location.href = chart.to + row[chart.link];
      });
      figure.dataset.drawn = "yes";
    };
    if (!(chart.kind === "steps" && document.querySelector("[data-points]"))) {
      draw();
      new ResizeObserver(() => drawn.resize()).observe(room);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    }
    figure.querySelectorAll("[data-save]").forEach((button) => button.addEventListener("click", () => {
      const width = Math.max(640, room.clientWidth);
      if (button.dataset.save === "svg") {
        save(chart.name + ".svg", URL.createObjectURL(new Blob([svgOf(chart, width)], { type: "image/svg+xml" })));
        return;
      }
      const canvas = room.querySelector("canvas");
      const whole = document.createElement("canvas");
      [whole.width, whole.height] = [canvas.width, canvas.height];
      const pen = whole.getContext("2d");
      pen.fillStyle = colour("ground");
      pen.fillRect(0, 0, whole.width, whole.height);
      pen.drawImage(canvas, 0, 0);
      save(chart.name + ".png", whole.toDataURL("image/png"));
    }));
  });
})();
