// Attributes that the theme leaves out: levels of the headings of the table of contents, and focus for blocks that scroll.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("[role=heading]:not([aria-level])").forEach((heading) => heading.setAttribute("aria-level", "2"));
  const mark = () => {
    document.querySelectorAll("pre, .table-wrapper, .math-wrapper, .MathJax_Display").forEach((block) => {
      if (block.scrollWidth > block.clientWidth) block.setAttribute("tabindex", "0");
      else block.removeAttribute("tabindex");
    });
  };
  mark();
  window.addEventListener("resize", mark);
  window.addEventListener("load", mark);
});
