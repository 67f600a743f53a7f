"use strict";
// Draws the figures in the width and the colours of the page, again whenever one of them changes.
(() => {
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const narrow = () => window.innerWidth < 600;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const buttons = ["lasso2d", "select2d", "sendChartToCloud"];
  const config = () => ({ displaylogo: false, modeBarButtonsToRemove: buttons,
    displayModeBar: narrow() ? false : "hover" });
  // Names of arms differ at their ends as often as at their beginnings.
  function shorter(text, most) {
    if (text.length <= most) return text;
    const tail = Math.floor((most - 1) / 2);
    return text.slice(0, most - 1 - tail) + "…" + text.slice(text.length - tail);
  }

  // Beside long names, and under titles of one line, a phone has no room for the plot.
  function narrowed(layout, data) {
    const { xaxis, yaxis } = layout;
    if (xaxis.title) xaxis.title.text = xaxis.title.text.replace(/ {2,}/, "<br>");
    for (const [axis, of] of [[xaxis, "x"], [yaxis, "y"]]) {
      if (axis.type !== "category") continue;
      axis.tickvals = axis.categoryarray || [...new Set(data.flatMap((t) => t[of]))];
      axis.ticktext = axis.tickvals.map((name) => shorter(name, 18));
    }
    return layout;
  }

  // No name of a legend is longer than the page is wide.
  function named(data, width) {
    const most = Math.floor((width - 70) / (narrow() ? 6.6 : 7.8));
    return data.map((t) => (t.name ? { ...t, name: shorter(t.name, most) } : t));
  }

  function themed(layout) {
    const axis = { gridcolor: colour("--grid"), zerolinecolor: colour("--soft"), linecolor: colour("--line") };
    const small = narrow();
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--ink"), size: small ? 11 : 13, family: getComputedStyle(document.body).fontFamily },
      xaxis: { ...layout.xaxis, ...axis },
      yaxis: { ...layout.yaxis, ...axis },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") } },
      modebar: { color: colour("--soft"), bgcolor: "rgba(0,0,0,0)", activecolor: colour("--ink") },
      dragmode: small ? false : "zoom",
      updatemenus: (layout.updatemenus || []).map((menu) => ({
        ...menu, bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") },
        active: -1,
      })),
    };
  }

  const drawn = new Set();
  const checked = (id) => Boolean(document.getElementById(id) && document.getElementById(id).checked);

  // Each arm's difference to the baseline, over the seeds that both have.
  function minusBaseline(spec) {
    return spec.data.filter((t) => t.meta === "mean").map((t) => ({ ...t, y: t.customdata }));
  }

  // A legend of several lines takes its room from the plot: give it back, to twice the height.
  function grow(element, height, wanted) {
    const missing = wanted - element._fullLayout._size.h;
    if (missing > 8) return Plotly.relayout(element, { height: height + Math.min(missing, height) });
  }

  function draw(id) {
    const spec = specs[id];
    const element = document.getElementById(id);
    const layout = structuredClone(spec.layout);
    let data = spec.data;
    if (spec.curve && checked("minus")) {
      data = minusBaseline(spec);
      const late = data.flatMap((t) => t.y.slice(Math.floor(t.y.length / 10)))
        .filter((y) => y !== null);
      const [low, high] = [Math.min(...late, 0), Math.max(...late, 0)];
      const pad = 0.06 * (high - low || 1);
      const title = { text: `${spec.curve} minus ${spec.baseline}` };
      layout.yaxis = { ...layout.yaxis, title, range: [low - pad, high + pad], zeroline: true };
    } else if (spec.curve && checked("log")) {
      layout.yaxis = { ...layout.yaxis, type: "log", range: null, autorange: true };
    }
    if (spec.curve && !checked("bands")) data = data.filter((t) => t.meta !== "band");
    if (spec.curve && !checked("spikes")) data = data.filter((t) => t.meta !== "spike");
    if (narrow()) {
      narrowed(layout, data);
      data = data.map((t) => (t.mode === "markers+text" ? { ...t, mode: "markers" } : t));
    }
    drawn.add(id);
    layout.width = element.clientWidth;
    data = named(data, layout.width);
    const { t, b } = layout.margin;
    const wanted = layout.height - t - b - 40;
    return Plotly.react(id, data, themed(layout), config())
      .then(() => grow(element, layout.height, wanted));
  }

  const select = document.getElementById("metric");
  function show() {
    for (const [id, spec] of Object.entries(specs)) {
      const hidden = Boolean(spec.curve && select && select.value !== id);
      document.getElementById(id).hidden = hidden;
      if (!hidden) draw(id);
    }
  }
  for (const id of ["metric", "bands", "minus", "log", "spikes"]) {
    const control = document.getElementById(id);
    if (control) control.addEventListener("change", show);
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  let width = window.innerWidth;
  let waiting = 0;
  window.addEventListener("resize", () => {  // on a phone also when its bars come and go
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(show, 100);
  });
  show();
  document.documentElement.dataset.drawn = String(drawn.size);
})();
