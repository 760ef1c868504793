"""The table of a benchmark for people."""

from __future__ import annotations

from typing import Any

from attractor.cli.printing import print_rows

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def print_report(report: dict[str, Any]) -> None:
    """Machine, contests, growth, and the count of targets."""
    print_rows("machine", machine(report))
    for result in report["contests"]:
        print_rows(result["name"], {entry["name"]: line(entry, result) for entry in result["contenders"]})
    if report["growth"]:
        label = "cost against size on log-log axes: slope over all sizes (over the largest three)"
        print_rows(label, {f"{curve['variable']}: {curve['name']}": growth(curve) for curve in report["growth"]})
    print_rows("targets", {name: str(count) for name, count in report["summary"].items() if count or name == "met"})


def machine(report: dict[str, Any]) -> dict[str, str]:
    found = report["machine"]
    rows = {
        "processor": f"{found['processor']}, {report['settings']['threads']} of {found['cores']} cores, {found['instruction_set']}"
    }
    if found["gpu"]:
        rows["gpu"] = found["gpu"]
    if found["load"]:
        rows["load"] = f"{found['load'][0]:.1f} before the run"
    for device, ceilings in report["ceilings"].items():
        for dtype, rates in (ceilings or {"rates": {}})["rates"].items():
            most = f"{unit(rates['exponentials'])}exp/s, {unit(2 * rates['multiply_adds'])}FLOP/s"
            rows[f"{device} {dtype}"] = f"{most} ({ceilings['source']})"
    if report["settings"]["quick"]:
        rows["quick"] = "sizes are too small for the figures to mean anything, and targets are not judged"
    return rows


def line(entry: dict[str, Any], result: dict[str, Any]) -> str:
    """One contender: time, share of the limit, ratio with its spread, target."""
    if entry["status"] != "timed":
        return f"{entry['status']}: {entry['reason']}"
    parts = [f"{seconds(entry['median']):>9}"]
    if entry["rate"] is not None:
        share = "" if entry["percent_of_limit"] is None else f", {entry['percent_of_limit']:.0f}% of the limit"
        parts.append(f"{unit(entry['rate'])}pair/s{share}")
    ratio, target = entry["ratio"], entry["target"]
    if ratio is not None:
        parts.append(f"ratio {ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})")
    if target is not None:
        least = f"{target['least']:g}" if target["what"] == "ratio" else f"{unit(target['least'])}pair/s"
        verdict = {True: "met", False: "MISSED", None: "not judged"}[entry["met"]]
        parts.append(f"target {least}: {verdict}")
    parts.append(f"error {entry['error']:.0e}")
    return "   ".join(parts)


def growth(curve: dict[str, Any]) -> str:
    if curve["status"] != "timed":
        return f"{curve['status']}: {curve['reason']}"
    ends = f"from {curve['sizes'][0]:g} to {curve['sizes'][-1]:g}"
    return f"{curve['slope']:.2f} ({curve['tail']:.2f}) {ends}"


def unit(value: float) -> str:
    """A large number in few digits, with the prefix of its unit."""
    size, prefix = next(((size, prefix) for size, prefix in UNITS if value >= size), (1.0, ""))
    return f"{value / size:.3g} {prefix}"


def seconds(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms" if value >= 1e-3 else f"{1e6 * value:.3g} us"
