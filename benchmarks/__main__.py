"""Measures llamaserve against llama-server, built from the same source with the same options.

    python -m benchmarks [--rounds 3] [--scenario NAME ...] [--out FOLDER]

Both servers run alternately, several rounds, driven by the same client. Prints a table of medians and their ratios, and
writes results.json and the pictures into the folder. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.peer import peer_binary
from benchmarks.scenarios import SCENARIOS, Scenario, model_path
from benchmarks.servers import NAMES, running


def measure(name: str, scenario: Scenario, rounds: int) -> dict[str, Any]:
    """Runs a scenario against both servers alternately; gives every figure's values, and the last round's series."""
    values: dict[str, dict[str, list[float]]] = {n: defaultdict(list) for n in NAMES}
    series: dict[str, Any] = {}
    model = model_path(scenario.model)
    for r in range(rounds):
        for server_name in NAMES if r % 2 == 0 else reversed(NAMES):
            print(f"{name}: round {r + 1} of {rounds}, {server_name}", file=sys.stderr)
            with running(server_name, model, *scenario.flags) as server:
                figures, drawn = asyncio.run(scenario.run(server, 1000 * (r + 1)))
            for figure, value in figures.items():
                values[server_name][figure].append(value)
            if drawn:
                series[server_name] = drawn
    return {"title": scenario.title, "values": values, "series": series}


def llama_bench(model: Path) -> float:
    """Tokens/s of one stream without a server, by llama-bench."""
    command = [str(peer_binary("llama-bench")), "-m", str(model), "-p", "0", "-n", "192", "-r", "3", "-o", "json"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(out)[0]["avg_ts"])


def llama_batched_bench(model: Path) -> float:
    """Tokens/s of 16 streams of 64 tokens without a server, by llama-batched-bench."""
    command = [
        str(peer_binary("llama-batched-bench")),
        "-m",
        str(model),
        "-c",
        "32768",
        "-npp",
        "12",
        "-ntg",
        "64",
        "-npl",
        "16",
    ]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    row = next(line for line in out.splitlines() if re.match(r"^\|\s+12 \|", line))
    return float(row.split("|")[8])


def verdict(scenario: Scenario, figure: str, peer: float, ours: float, extra: dict[str, float]) -> str:
    f = scenario.figures[figure]
    if not f.target:
        return ""
    if figure == "peak memory":
        ok = ours - peer <= 80
    elif figure == "prompt tokens":
        ok = ours <= extra["never seen"] * 1.02
    elif f.target == "0.95 of llama-bench":
        ok = ours >= 0.95 * extra["llama-bench"]
    else:
        assert f.limit is not None
        ratio = ours / peer
        ok = ratio >= f.limit if f.higher_is_better else ratio <= f.limit
    return f"{'yes' if ok else 'NO'} ({f.target})"


def table(results: dict[str, Any], references: dict[str, float]) -> str:
    rows = [
        "| scenario | figure | llama-server | llamaserve | ratio | reached |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, result in results.items():
        scenario = SCENARIOS[name]
        medians = {n: {k: statistics.median(v) for k, v in result["values"][n].items()} for n in NAMES}
        extra = {**references, **medians["llamaserve"]}
        for figure, spec in scenario.figures.items():
            peer, ours = medians["llama-server"][figure], medians["llamaserve"][figure]
            reached = verdict(scenario, figure, peer, ours, extra)
            cells = (
                scenario.title,
                f"{figure} ({spec.unit})",
                f"{peer:.4g}",
                f"{ours:.4g}",
                f"{ours / peer:.3f}",
                reached,
            )
            rows.append(f"| {' | '.join(cells)} |")
    for name, value in references.items():
        rows.append(f"| without a server | {name} (tokens/s) | {value:.4g} | | | |")
    return "\n".join(rows)


def draw(results: dict[str, Any], folder: Path) -> None:
    """The pictures: gaps of running streams while a long prompt arrives, and throughput by number of clients."""
    import matplotlib as mpl  # noqa: PLC0415

    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415

    def picture(scenario: str, key: str, x: str, y: str, *, dots: bool) -> None:
        if scenario not in results:
            return
        figure, axes = plt.subplots(figsize=(8, 4.5))
        for name, drawn in results[scenario]["series"].items():
            points = drawn[key]
            axes.plot(*zip(*points, strict=True), "." if dots else "o-", label=name, markersize=3 if dots else 6)
        axes.set(xlabel=x, ylabel=y, title=results[scenario]["title"])
        if dots:
            axes.set_yscale("log")
        axes.legend()
        figure.savefig(folder / f"{scenario}.svg", bbox_inches="tight")
        plt.close(figure)

    picture("long-prompt", "gap in ms", "seconds since the long prompt arrived", "ms between tokens", dots=True)
    picture("streams", "tokens/s", "clients", "tokens/s, all together", dots=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure llamaserve against llama-server.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="only these (default: all)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    names = arguments.scenario or list(SCENARIOS)
    arguments.out.mkdir(parents=True, exist_ok=True)

    references: dict[str, float] = {}
    if "one-stream" in names:
        references["llama-bench"] = llama_bench(model_path("smollm2"))
    if "streams" in names:
        references["llama-batched-bench"] = llama_batched_bench(model_path("smollm2"))
    results = {name: measure(name, SCENARIOS[name], arguments.rounds) for name in names}
    text = table(results, references)
    print(text)
    record = {"machine": platform.processor() or platform.machine(), "references": references, "scenarios": results}
    (arguments.out / "results.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    (arguments.out / "table.md").write_text(text + "\n", encoding="utf-8")
    draw(results, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
