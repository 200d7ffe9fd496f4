"use strict";
(() => {
  // Links of the contents lead to the sections, in order.
  const sections = document.querySelectorAll("section.level-2");
  document.querySelectorAll(".contents a").forEach((link, place) => { link.href = "#" + sections[place].id; });

  const NARROW = 640;
  const options = { mode: "vega-lite", renderer: "svg", ast: true, logLevel: 1, actions: { export: true, source: false, compiled: false, editor: false } };

  // The specification with all widths multiplied, and on a narrow page with its legends below.
  const scaled = (part, factor) => {
    if (Array.isArray(part)) return part.map((inside) => scaled(inside, factor));
    if (part === null || typeof part !== "object") return part;
    const made = {};
    for (const [name, inside] of Object.entries(part)) {
      if (name === "datasets") made[name] = inside;
      else if (name === "width" && typeof inside === "number" && inside > 100) made[name] = Math.max(80, Math.round(inside * factor));
      else made[name] = scaled(inside, factor);
    }
    return made;
  };
  const arranged = (specification, factor, narrow) => {
    const made = scaled(specification, factor);
    made.config = { ...made.config, background: null };
    if (narrow) {
      const legend = { ...made.config.legend, orient: "bottom", direction: "vertical", columns: 2, labelLimit: 130 };
      made.config = { ...made.config, legend, axis: { ...made.config.axis, labelLimit: 90 } };
    }
    return made;
  };

  const charts = [...document.querySelectorAll("figure.chart")].map((figure) => ({
    place: figure.querySelector(".picture"),
    specification: JSON.parse(figure.querySelector("script").textContent),
    view: null,
    width: 0,
  }));

  // On paper charts that are not much wider than high stand side by side, in one shape.
  const HALF = 0.3, SHAPE = 0.62;
  for (const { place, specification } of document.documentElement.classList.contains("paper") ? charts : []) {
    const { width, height } = specification;
    if (typeof height === "number" && height > HALF * (width || 900)) place.closest(".chart").classList.add("half");
  }

  // Draw at the width that the page has: once, and once more where legends took more room than expected.
  const draw = async (chart) => {
    const room = chart.place.clientWidth;
    if (!room || room === chart.width) return;
    chart.width = room;
    const narrow = room < NARROW && !chart.place.closest(".small");
    let factor = Math.min(1.25, chart.factor ?? (room - (narrow ? 60 : 170)) / (chart.specification.width || 900));
    if (chart.place.closest(".small")) factor = Math.min(1, (room - 70) / (chart.specification.width || 260));
    for (let turn = 0; turn < 2; turn += 1) {
      if (chart.view) chart.view.finalize();
      const made = arranged(chart.specification, Math.max(factor, 0.15), narrow);
      if (chart.place.closest(".half")) made.height = Math.min(made.height, Math.round(SHAPE * room));
      chart.view = await vegaEmbed(chart.place, made, options);
      const svg = chart.place.querySelector("svg");
      const drawn = svg.width.baseVal.value;
      chart.place.closest(".chart").classList.toggle("tall", svg.height.baseVal.value > drawn);
      if (drawn <= room * 1.04) break;
      factor *= room / drawn;
    }
  };

  let turn = Promise.resolve();
  const drawAll = () => {
    turn = turn.then(async () => {
      for (const chart of charts) {
        try { await draw(chart); } catch (error) { chart.place.textContent = "This chart could not be drawn."; console.error(error); }
        await new Promise((done) => setTimeout(done));
      }
      document.documentElement.dataset.drawn = String(charts.length);
      document.documentElement.dataset.width = String(window.innerWidth);
    });
  };
  drawAll();
  let waiting = 0;
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 200); });
  window.addEventListener("beforeprint", () => document.querySelectorAll("details.fold").forEach((one) => { one.open = true; }));
})();
