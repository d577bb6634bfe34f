// Fetches the font for mathematics after the first paint, where the system has none of its own:
// text must not wait for it. Without JavaScript formulas stand in the system's fonts.
(() => {
  const file = new URL(
    "vendor/noto-sans-math/noto-sans-math-latin-400-normal.woff2",
    document.currentScript.src,
  );
  const own = ["STIX Two Math", "Cambria Math", "Latin Modern Math", "Noto Sans Math"];
  const sources = [...own.map((name) => `local("${name}")`), `url("${file}") format("woff2")`];
  let asked = false;
  function fetchFont() {
    if (asked || !document.querySelector("math")) return;
    asked = true;
    const font = new FontFace("Book Math", sources.join(", "));
    font.load().then(() => document.fonts.add(font));
  }
  new PerformanceObserver(() => setTimeout(fetchFont)).observe({ type: "paint", buffered: true });
  addEventListener("load", () => setTimeout(fetchFont, 3000)); // where no paint is reported
})();
