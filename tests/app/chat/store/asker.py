"""A program that has a model answer at length, and says on stdout what one would see of it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from app.chat.conversation import Conversation
from app.chat.host import EngineHost
from app.chat.store.store import ChatStore
from app.chat.turn import Turn
from app.options import ModelOptions
from runtimes.request import SamplingParams
from tests.app import endless


def main(path: Path, model: str) -> None:
    """Polls as a screen does, ten times a second."""
    host = EngineHost()
    host.load(model, ModelOptions(context=endless.CONTEXT, threads=1))
    params = SamplingParams(max_tokens=endless.CONTEXT - 1024, ignore_eos=True)
    with ChatStore.open(path) as store:
        conversation = Conversation.new(store)
        asked = conversation.say("Tell me a story about a fox.")
        turn = Turn.start(host, conversation, asked, params)
        done = False
        while not done:
            progress = turn.poll()
            done = progress.done
            seen = {"id": turn.message.id, "at": time.time(), "text": progress.message.text}
            sys.stdout.write(json.dumps(seen) + "\n")
            sys.stdout.flush()
            time.sleep(0.1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
