"use strict";
(() => {
  const NARROW = 640; // px
  const options = { mode: "vega-lite", renderer: "svg", ast: true, logLevel: 1, actions: { export: true, source: false, compiled: false, editor: false } };

  // Draw a chart at the width of its place. Charts below each other have no container: leave room for axes and legends.
  const draw = async (place, text, drawn) => {
    const width = place.clientWidth, narrow = width < NARROW;
    if (!width || place.dataset.width === String(width)) return drawn;
    const chart = JSON.parse(text), { axis, legend } = chart.config;
    chart.config.background = null;
    if (narrow) {
      Object.assign(legend, { orient: "bottom", columns: 2, labelLimit: 130 });
      axis.labelLimit = 160;
    }
    if (chart.width) chart.width = "container";
    for (const part of chart.vconcat ?? []) part.width = width - (narrow ? 90 : 250);
    drawn?.finalize();
    place.dataset.width = width;
    return vegaEmbed(place, chart, options);
  };

  // The library is packed; the hash of its text is in the page's policy.
  const unpack = async (packed) => {
    const bytes = Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  };

  const library = document.getElementById("library");
  let turn = library ? unpack(library.textContent) : Promise.resolve(); // then one chart at a time
  for (const figure of document.querySelectorAll("figure.chart")) {
    const place = figure.querySelector(".picture"), text = figure.querySelector("script").textContent;
    let drawn;
    const next = async () => { drawn = await draw(place, text, drawn); };
    new ResizeObserver(() => { turn = turn.then(next).catch(console.error); }).observe(place);
  }
  window.addEventListener("beforeprint", () => document.querySelectorAll("details.fold").forEach((one) => { one.open = true; }));
})();
