// The page of one film.
(function () {
  "use strict";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const reel = JSON.parse(document.getElementById("reel").textContent);
  const film = window.attractorFilm(document.querySelector("main"), reel, () => dark.matches);
  film.ready.then(() => {
    dark.addEventListener("change", film.paint);
    document.body.dataset.ready = "yes";
  });
})();
