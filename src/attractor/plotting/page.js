// The page of one animation.
(function () {
  "use strict";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const data = JSON.parse(document.getElementById("data").textContent);
  const animation = window.attractorAnimation(document.querySelector("main"), data, () => dark.matches);
  animation.ready.then(() => {
    dark.addEventListener("change", animation.paint);
    document.body.dataset.ready = "yes";
  });
})();
