"""Answers that keep to a schema or to choices, until that is turned off."""

import json
from collections.abc import Callable
from pathlib import Path

from textual.widgets._markdown import MarkdownTable

from app.chat.store.records import State
from app.config.settings import Sampling
from app.tui.app import IngotApp
from tests.app.tui.chat_app import answered, shown
from tests.app.tui.conftest import ask
from tests.support import wait_until

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}, "country": {"enum": ["Italy", "France"]}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


async def test_answers_keep_to_a_form(make: Callable[..., IngotApp], tmp_path: Path) -> None:
    file = tmp_path / "city.json"
    file.write_text(json.dumps(SCHEMA))
    app = make(Sampling(max_tokens=60, temperature=0.0))

    def told() -> list[str]:
        return [str(screen.notice.content), *(one.message for one in app._notifications)]

    async with app.run_test(size=(100, 30)) as pilot:
        screen = await shown(app)
        await ask(pilot, "/choice lemons | limes")
        await wait_until(lambda: "one of your choices" in str(screen.box.border_title))
        await ask(pilot, "What is the capital of France?")
        assert (await answered(screen, 2)).text in ("lemons", "limes")

        await ask(pilot, f"/schema {file}")
        await wait_until(lambda: "JSON of your schema" in str(screen.box.border_title))
        await ask(pilot, "/set temperature 0.5")  # another setting leaves the form alone
        await ask(pilot, "What is the capital of France?")
        answer = await answered(screen, 4)
        said = json.loads(answer.text)
        assert said.keys() == {"city", "country"}
        view = screen.transcript.view_of(answer.id)
        assert view is not None
        await wait_until(lambda: len(view.query(MarkdownTable)) == 1)
        chat = screen.session.chat_id
        assert chat is not None
        await screen.new_chat()
        assert "JSON" not in str(screen.box.border_title)
        await screen.open_chat(chat)
        assert "JSON of your schema" in str(screen.box.border_title)
        await ask(pilot, "/set max_tokens 6")
        await ask(pilot, "What is the capital of Japan?")
        assert (await answered(screen, 6)).state is State.CUT
        await pilot.press("ctrl+g")  # what goes on in the middle has no form
        await wait_until(lambda: any("could not keep to it" in text for text in told()))
        assert screen.path[-1].state is State.CUT
        await ask(pilot, "/schema off")
        await wait_until(lambda: "JSON" not in str(screen.box.border_title))
        await ask(pilot, "/schema nothing.json")
        await wait_until(lambda: any("cannot be read" in text for text in told()))
