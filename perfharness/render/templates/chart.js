// Draw a chart at the width of its place, instead of the one that is there; a promise of vega-embed's result.
// Charts below each other have no container: leave room for axes and legends.
const drawChart = (place, chart) => {
  const NARROW = 640, DRAG = 4; // px
  const options = { mode: "vega-lite", renderer: "svg", ast: true, logLevel: 1, actions: { export: true, source: false, compiled: false, editor: false } };
  const width = place.clientWidth, narrow = width < NARROW, { axis, legend } = chart.config;
  chart.config.background = null;
  if (narrow) {
    Object.assign(legend, { orient: "bottom", columns: 2, labelLimit: 130 });
    axis.labelLimit = 160;
  }
  if (chart.width) chart.width = "container";
  for (const part of chart.vconcat ?? []) part.width = width - (narrow ? 90 : 250);

  // A chart that was dragged by a point does not open the point's link.
  if (!place.onpointerdown) place.addEventListener("click", (event) => {
    if (Math.hypot(event.x - place.down?.x, event.y - place.down?.y) > DRAG) event.stopPropagation();
  }, true);
  place.onpointerdown = (event) => { place.down = event; };

  const before = Promise.resolve(place.drawn).catch(console.error);
  place.drawn = before.then((drawn) => drawn?.finalize()).then(() => vegaEmbed(place, chart, options));
  return place.drawn;
};
