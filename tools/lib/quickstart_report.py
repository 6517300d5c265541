"""Prints what tools/quickstart.sh made: loss before and after, samples, where the model is, what to try next.

Usage: quickstart_report.py RUN_DIR
"""

import json
import pathlib
import re
import sys

LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ \w+ (.*)")  # time stamp, level, text
SAMPLE = re.compile(r"sample (before|after step \d+): (.*)")


def read_rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line] if path.exists() else []


def indented(text, width=96):
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join(f"      {part}" for part in lines + [line])


def print_losses(run):
    rows = read_rows(run / "metrics.jsonl")
    losses = [row["loss"] for row in rows if row.get("loss") is not None]
    if losses:
        few = max(1, min(3, len(losses) // 4))
        first, last = sum(losses[:few]) / few, sum(losses[-few:]) / few
        print(f"  training loss: {first:.3f} over the first {few} steps, {last:.3f} over the last {few}")
    evaluations = [row for row in rows if row.get("eval_loss") is not None]
    for row in evaluations:
        print(f"  evaluation loss after step {row['step']}: {row['eval_loss']:.3f}")


def read_samples(path):
    """[(when, text)] from the log: "... info sample before: text", where the text may go on over several lines."""
    samples, open_sample = [], False
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []:
        match = LOG_LINE.match(line)
        said = SAMPLE.match(match.group(1)) if match else None
        if said:
            samples.append([said.group(1), said.group(2)])
            open_sample = True
        elif match:
            open_sample = False
        elif open_sample:
            samples[-1][1] += "\n" + line
    return samples


def print_samples(run):
    samples = read_samples(run / "zinf.log")
    for when, text in samples[:1] + samples[1:][-1:]:
        print(f"  what it says {when} training:" if when == "before" else f"  {when}:")
        print(indented(text))


def print_summary(run):
    path = run / "summary.json"
    if not path.exists():
        return
    summary = json.loads(path.read_text())
    written = sum(summary.get("written_bytes", {}).values())
    print(f"  {summary['parameters']:,} parameters, {summary['steps']} steps, {written / 1e9:.1f} GB written to the drive")
    for tier in ("device", "host"):
        peak = summary["peak_bytes"].get(tier) or {}
        if peak.get("budget"):
            print(f"  {tier} memory: peak {peak['measured'] / 2**20:,.0f} MiB of {peak['budget'] / 2**20:,.0f} MiB allowed")


def main():
    run = pathlib.Path(sys.argv[1])
    print_summary(run)
    print_losses(run)
    print_samples(run)
    if (run / "model").is_dir():
        print(f"  the model, for transformers or any other tool: {run / 'model'}")
    print(f"""  what to try next:
      build/zinf train configs/quickstart.yaml --steps 200                               go on from here
      build/zinf train configs/quickstart.yaml --set placement=auto --run-dir runs/auto  use what memory there is
      build/zinf tune .cache/swap                                                        find the drive's best settings
      build/zinf plan configs/finetune_chat.yaml                                         your own chats: edit this recipe
  losses, summary, log and the resolved config: {run}
  states that the run could go on from: `build/zinf doctor .cache/swap` lists them and says how to delete them""")


main()
