"""A program that chats with itself: it says on stdout what is saved, until it is killed."""

import sys
from dataclasses import replace
from pathlib import Path

from app.chat.store.records import AnswerFigures, State
from app.chat.store.store import ChatStore


def main(path: Path, answers: int, saves: int) -> None:
    """``answers`` answers of ``saves`` savings each; the last one of the last answer waits."""

    def told(*what: object) -> None:
        sys.stdout.write(" ".join(map(str, what)) + "\n")
        sys.stdout.flush()

    store = ChatStore.open(path)
    chat = store.new_chat()
    parent = None
    for number in range(answers):
        asked = store.add_message(chat.id, parent, f"question {number}")
        told("asked", asked.id)
        answer = store.begin_answer(chat.id, asked.id, model="m", file="f", runtime="r")
        told("begun", answer.id)
        text, ids = "", []
        for save in range(saves):
            text += f"word{save} é天 "
            ids += [save, 100_000 + save]
            figures = AnswerFigures(3, 0, len(ids), 0.1, None, None, 0.1, "")
            store.save_answer(answer.id, text, ids, figures)
            told("saved", answer.id, save + 1)
        parent = answer.id
        store.end_answer(
            replace(answer, text=text, token_ids=ids, state=State.DONE, figures=figures)
        )
        told("ended", answer.id)
    told("waiting")
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
