// Loads MathJax once the page has been painted, and typesets formula by formula, so that neither
// its size nor its work keeps a reader waiting. Sphinx adds this file to pages with mathematics.
window.mathematics = new Promise((done) => {
  const source = new URL("vendor/mathjax/tex-mml-chtml.js", document.currentScript.src);
  const pause = () => new Promise((go) => setTimeout(go));

  async function typeset() {
    for (const formula of document.querySelectorAll(".math")) {
      await MathJax.typesetPromise([formula]);
      await pause();
    }
    done();
  }

  let loading = false;
  function load() {
    if (loading) return;
    loading = true;
    const script = document.createElement("script");
    script.src = source;
    document.head.append(script);
  }

  window.MathJax = { ...window.MathJax, startup: { typeset: false, pageReady: typeset } };
  new PerformanceObserver(() => setTimeout(load)).observe({ type: "paint", buffered: true });
  window.addEventListener("load", () => setTimeout(load, 3000)); // where no paint is reported
});
