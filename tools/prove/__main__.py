"""
`make prove`: tries for an hour, or for MINUTES, whatever could break the promise, and reports what held.

Seeds, samples and rounds are new in each run; the report names those that repeat it, as `--seed` does. What
this machine lacks something for is left out, and says so.
"""

import argparse
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.prove.parts import PARTS, Part
from tools.prove.report import Row, as_markdown, head_of, status_of
from tools.prove.run import BROKEN, LEFT_OUT, ROOT, Proof, Result

OUT = ROOT / "build" / "prove"


def prove(proof: Proof, parts: Sequence[Part], minutes: float, say: Callable[[str], None]) -> list[Row]:
    """Run the parts one after the other; time that one leaves is for those after it."""
    began, rows = time.monotonic(), []
    for number, part in enumerate(parts):
        at = time.monotonic()
        left_s = max(0.0, minutes * 60 - (at - began))
        budget_s = left_s * part.share / sum(each.share for each in parts[number:])
        say(f"[{(at - began) / 60:4.1f} of {minutes:g} min] {part.name}: {part.claim}")
        if (lack := part.lacks()) is not None:
            result = Result(LEFT_OUT, "-", lack)
        else:
            proof.begin(part.name)
            try:
                result = part.run(proof, budget_s)
            except Exception as err:
                result = Result(BROKEN, "-", f"it ended with {err!r}")
        rows.append(Row(part, result, time.monotonic() - at))
        say(f"    {result.verdict}: {result.tried}, {rows[-1].seconds:.0f} s")
    return rows


def main() -> int:
    """Run what is named, or everything, and write the report; return 1 if something was broken."""
    parser = argparse.ArgumentParser(prog="python -m tools.prove", description=__doc__)
    parser.add_argument(
        "only", nargs="*", help=f"parts, by the begin of their names: {', '.join(p.name for p in PARTS)}"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="how long all parts take together, about")
    parser.add_argument("--seed", type=int, help="of an earlier run, to repeat it")
    parser.add_argument("--out", type=Path, default=OUT, help="for report.md and logs; emptied first")
    asked = parser.parse_args()
    parts = [part for part in PARTS if not asked.only or part.name.startswith(tuple(asked.only))]
    if not parts:
        parser.error("no part has such a name")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no part goes on
    shutil.rmtree(asked.out, ignore_errors=True)
    asked.out.mkdir(parents=True)
    proof = Proof(
        random.SystemRandom().randrange(10**9) if asked.seed is None else asked.seed, asked.out.resolve()
    )
    head = head_of(proof.seed, asked.minutes)
    rows = prove(proof, parts, asked.minutes, lambda line: print(line, flush=True))
    report = as_markdown(rows, head)
    (asked.out / "report.md").write_text(report, encoding="utf-8")
    print(f"\n{report.partition(chr(10) + '## ')[0]}\nThe report: {asked.out / 'report.md'}")
    return status_of(rows)


if __name__ == "__main__":
    sys.exit(main())
