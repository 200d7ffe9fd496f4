"use strict";
(() => {
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
    const next = async () => {
      const width = String(place.clientWidth);
      if (width === "0" || place.dataset.width === width) return;
      place.dataset.width = width;
      await drawChart(place, JSON.parse(text));
    };
    new ResizeObserver(() => { turn = turn.then(next).catch(console.error); }).observe(place);
  }
  window.addEventListener("beforeprint", () => document.querySelectorAll("details.fold").forEach((one) => { one.open = true; }));
})();
