"""Ask a Pebble folder the graded questions and print the score by task.

python assets/eval_pebble.py [FOLDER] [--wrong | --long]
python assets/eval_pebble.py --write-graded
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from pebble_train.grading import (
    grade,
    read_graded,
    scores_by_distance,
    scores_by_task,
    write_calibration,
    write_evaluation,
    write_graded,
)

log = logging.getLogger("pebble")


def main() -> None:
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=here / "pebble")
    parser.add_argument("--graded", type=Path, default=here / "pebble" / "graded.jsonl")
    parser.add_argument("--wrong", action="store_true", help="show the questions it got wrong")
    parser.add_argument("--long", action="store_true", help="score long conversations by distance")
    parser.add_argument(
        "--write-graded",
        action="store_true",
        help="write the graded set and the texts anew and stop",
    )
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.write_graded:
        count = write_graded(options.graded, (options.folder / "tokenizer.model").read_bytes())
        write_evaluation(options.graded.with_name("evaluation.txt"))
        write_calibration(options.graded.with_name("calibration.txt"))
        log.info("%d questions written to %s", count, options.graded)
        return
    if options.long:
        for start, (right, asked_count) in scores_by_distance(options.folder).items():
            print(
                f"after {start:4d} tokens {right:4d}/{asked_count:<4d} {right / asked_count:7.1%}"
            )
        return
    graded = grade(options.folder, read_graded(options.graded))
    for row in graded:
        if options.wrong and not row.right:
            asked = row.question.messages[-1]["content"]
            log.info(
                "%s: %s\n  wanted %r\n  got    %r",
                row.question.task,
                asked,
                row.question.answer,
                row.said,
            )
    for task, (right, asked_count) in scores_by_task(graded).items():
        print(f"{task:10} {right:4d}/{asked_count:<4d} {right / asked_count:7.1%}")
    total = sum(row.right for row in graded)
    print(f"{'all':10} {total:4d}/{len(graded):<4d} {total / len(graded):7.1%}")


if __name__ == "__main__":
    main()
