"""A server that is killed again and again under a batch (kill -9), and what has become of the rows.

The tests kill it a few times. By hand, from the root of the repository:
``python -m tests.app.serve.batches.kills FILE.gguf --kills 100 --rows 2000``.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.app.serve.batches.conftest import ENDED, begin, ended, line, lines_of
from tests.support import until

log = logging.getLogger(__name__)


class Server:
    """`ingot serve` in a process of its own."""

    def __init__(self, model: Path, data: Path) -> None:
        arguments = (f"pebble={model}", "--port", "0", "--data", str(data), "--slots", "4")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        # What it says of each request must not fill the pipe.
        self._reader = threading.Thread(target=self.process.stderr.read)

    def client(self) -> OpenAI:
        """Once it is ready."""
        assert self.process.stderr is not None
        for said in self.process.stderr:
            found = re.search(rb"(http://127\.0\.0\.1:\d+/v1) is ready", said)
            if found:
                self._reader.start()
                return OpenAI(base_url=found[1].decode(), api_key="none", max_retries=0)
        raise AssertionError(f"it ended with {self.process.wait()}")

    def kill(self) -> None:
        self.process.kill()
        if self._reader.is_alive():
            self._reader.join()
        self.process.communicate()


@dataclass
class Seen:
    """What was on the disk at the kills."""

    states: Counter[str] = field(default_factory=Counter)
    answers: dict[int, str] = field(default_factory=dict)  # of rows, as the journal had them
    early: int = 0  # kills before the server was ready

    def look(self, data: Path, batch: Any) -> None:
        """Every answer is there once, and none that was there has gone."""
        folder = data / "batches" / batch.id
        self.states[json.loads((folder / "batch.json").read_bytes())["status"]] += 1
        found: dict[int, str] = {}
        for journal in folder.glob("*.journal.jsonl"):
            for text in journal.read_bytes().splitlines(keepends=True):
                row = json.loads(text) if text.endswith(b"\n") else {}
                if row.get("ok"):
                    assert row["index"] not in found, f"row {row['index']} was asked twice"
                    found[row["index"]] = row["answer"]["response"]
            for index, answer in self.answers.items():
                assert found[index] == answer, f"row {index} was lost"
            self.answers |= found


def kill_often(model: Path, data: Path, *, rows: int, kills: int, seed: int) -> Seen:
    """Kill a server so often while it answers a batch; raises AssertionError for a row that is lost
    or doubled."""
    chance, seen = random.Random(seed), Seen()
    server = Server(model, data)
    try:
        client = server.client()
        before = ended(client, begin(client, [line(i, max_tokens=2) for i in range(5)]))
        results = client.files.content(before.output_file_id).content
        batch = begin(client, [line(i, max_tokens=8) for i in range(rows)])
        time.sleep(chance.uniform(0, 0.05))  # while its input is read
        for kill in range(kills):
            server.kill()
            seen.look(data, batch)
            server = Server(model, data)
            if kill % 5 == 4:
                time.sleep(chance.uniform(0, 2))
                seen.early += 1
                continue
            client = server.client()
            at = client.batches.retrieve(batch.id)
            log.info("kill %d: %s, %s", kill + 1, at.status, at.request_counts)
            assert at.request_counts.completed >= len(seen.answers)
            # Most come while rows run, some before, and the last ones while its files are written.
            if kill % 3:
                more = len(seen.answers) + chance.randint(1, 2 * rows // kills)
                until(lambda batch=batch, more=more, client=client: _over(client, batch, more))
            time.sleep(chance.uniform(0, 0.05 if kill % 3 else 0.6))
        server.kill()
        seen.look(data, batch)
        server = Server(model, data)
        client = server.client()
        batch = ended(client, batch)
        assert batch.status == "completed"
        assert batch.request_counts.completed == rows
        answers = lines_of(client, batch.output_file_id)
        assert [one["custom_id"] for one in answers] == [f"row-{i}" for i in range(rows)]
        for index, text in seen.answers.items():
            body = answers[index]["response"]["body"]
            assert body["choices"][0]["message"]["content"] == text
        assert client.files.content(client.batches.retrieve(before.id).output_file_id).content == (
            results
        )
        assert len(client.files.list().data) == 4
        assert len(client.batches.list().data) == 2
        return seen
    finally:
        server.kill()


def _over(client: OpenAI, batch: Any, rows: int) -> bool:
    now = client.batches.retrieve(batch.id)
    return now.status in ENDED or now.request_counts.completed >= min(
        rows, now.request_counts.total
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as data:
        seen = kill_often(
            given.model, Path(data), rows=given.rows, kills=given.kills, seed=given.seed
        )
    log.info(
        "%d kills (%d before the server was ready) of a batch that was %s; %d of %d rows were there"
        " at the last one; none was lost or doubled; %.0f s",
        given.kills + 1,
        seen.early,
        dict(seen.states),
        len(seen.answers),
        given.rows,
        time.monotonic() - begun,
    )


if __name__ == "__main__":
    main()
