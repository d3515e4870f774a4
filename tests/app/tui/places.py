"""Every screen of the app in turn, in each of its states, for tests of what can be done there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from textual.screen import Screen
from textual.widgets import OptionList, TabbedContent

from app.batch.watch import form as presets
from app.batch.watch.form import JobForm
from app.batch.watch.job import Phase
from app.batch.watch.process import foreign
from app.batch.watch.records import seen
from app.builds.results import read_result
from app.chat.budget import TokenBudget, Way, WayOut
from app.chat.conversation import Conversation
from app.compare.results import Ballot, FileResult, PromptResult, Results, Sided, Told, pair_of
from app.models.catalog import entry_of
from app.tools.calls import CallState, ToolCall
from app.tui.help import Commands, HelpScreen, Palette
from app.tui.screens.answering import SamplingScreen, SystemScreen
from app.tui.screens.batch import BatchJob, BatchScreen, BatchTable
from app.tui.screens.batch_panels import (
    BatchFilesScreen,
    BatchJobsScreen,
    BatchLeaveScreen,
    BatchPresetsScreen,
    BatchResumeScreen,
    BatchRowScreen,
)
from app.tui.screens.chat import ChatScreen
from app.tui.screens.chats import ChatsScreen
from app.tui.screens.compare import AnswersScreen, CompareScreen
from app.tui.screens.compare_prompts import BlindScreen, ComparePromptsScreen
from app.tui.screens.dialogs import (
    AskScreen,
    CallScreen,
    ConfirmScreen,
    CopyChoice,
    OverflowScreen,
    ThemeScreen,
)
from app.tui.screens.files import AttachScreen, ExportScreen
from app.tui.screens.find import FindScreen
from app.tui.screens.models import LoadScreen, ModelsScreen
from app.tui.screens.monitor import MonitorScreen, SweepScreen
from app.tui.screens.quantize import QuantizeScreen
from app.tui.widgets.batch_form import BatchForm
from app.tui.widgets.quantize_files import FileTable, QuantizeResult, TypesScreen
from app.tui.widgets.repo_view import BuildTable
from app.tui.widgets.table import Table
from quantize.manifest import Allocation, FileEntry, ModelOrigin
from tests.app.tui.batch_app import ROWS, frozen
from tests.app.tui.chat_app import add_turn
from tests.app.tui.test_sweep_screen import swept
from tests.support import wait_until

TYPES = Allocation({"blk.0.attn_v.weight": "q8_0"}, 0.01, 2, 0.01, 0.01)
BUILT = FileEntry("gguf", "", 4, "m", 1, {}, ModelOrigin("m", ""), {}, allocation=TYPES)
WAYS_OUT = [WayOut(Way.SHORTER, "allow a short answer only", TokenBudget(1900, 148, 2048))]


def judged(count: int, said: Callable[[str], str] = str) -> Results:
    """What two files answered: always something else."""
    rows = tuple(
        PromptResult(
            *(n, said(f"{n}"), said(f"prompt {n}")),
            (Told(said(f"one {n}")), Told(said(f"two {n}"))),
            *((0,), (0,)),
        )
        for n in range(count)
    )
    files = tuple(FileResult(said(name), said(name), "llamacpp") for name in ("one", "two"))
    return Results(said("p.txt"), files, (pair_of(rows, 1, "tokens"),), rows)


async def places(
    pilot: Any,
    built: Path,
    ended: Callable[[Any], None] = lambda _: None,
    said: Callable[[str], str] = str,
) -> AsyncIterator[tuple[str, Screen[Any]]]:
    """Opens one after another over the app's first screen, in the working folder, and takes it away
    again. ``built`` has Pebble's files; ``ended`` is told what a screen ended with. ``said`` makes
    each text of what comes from elsewhere: names, titles, prompts, answers."""
    app = pilot.app
    store = app.services.store
    await pilot.pause()  # without a model the app begins with a list of them, if it can
    texts = (
        json.dumps({"id": said(f"r{i}"), "prompt": said(f"What is {i}?")}) for i in range(ROWS)
    )
    Path("questions.jsonl").write_text("".join(f"{text}\n" for text in texts))
    chat = store.new_chat().id
    answer = f"<think>{said('Well.')}</think>So:\n\n```{said('python')}\n{said('row()')}\n```\n"
    call = ToolCall("a", said("zone"), json.dumps({said("name"): said("UTC")}))
    calls = (
        call,
        call.ended(CallState.DONE, said("+00:00")),
        call.ended(CallState.FAILED, said("")),
    )
    add_turn(store, chat, None, said("How?"), f"{answer}{said('Go.')}", calls=calls)
    store.update_chat(chat, title=said("How?"))

    async def over(screen: Screen[Any]) -> Any:
        await app.push_screen(screen, ended)
        await pilot.pause()
        return screen

    async def away(screen: Screen[Any]) -> None:
        while app.screen is not screen:  # what a test has opened over it
            await app.pop_screen()
        await app.pop_screen()
        await pilot.pause()

    talk = await over(ChatScreen())
    welcome = talk.transcript.welcome
    welcome.show = lambda *_: None  # whatever the engine tells it from now on
    welcome.query_one(".starters").display = True  # as with a model
    await pilot.pause()
    yield "an empty chat", talk
    await talk.open_chat(chat)
    await pilot.pause()
    yield "a chat", talk
    await away(talk)

    entry = entry_of(next(built.glob("pebble-q8_0*.gguf")))
    presets.save(said("mine"), JobForm(model=str(built)), Path.cwd())
    words = ["batch", "in.jsonl", "out.jsonl", "-m", "model", "--system", said("Be short.")]
    run = {"command": words, "folder": "/"}
    panels: list[Callable[[], Screen[Any]]] = [
        lambda: SystemScreen(said("Be short."), {}),
        lambda: SamplingScreen({}),
        lambda: AttachScreen(),
        lambda: ExportScreen(Conversation.open(store, chat)),
        lambda: CopyChoice([(said("all"), "So."), (said("code"), "row()")]),
        lambda: ThemeScreen(sorted(app.available_themes), app.theme),
        lambda: OverflowScreen(TokenBudget(2100, 512, 2048), WAYS_OUT),
        lambda: CallScreen(said("clock"), call),
        lambda: AskScreen(said("Rename the chat"), said("How?")),
        lambda: ConfirmScreen(said("Go?"), "Go"),
        lambda: BatchFilesScreen(Path.cwd()),
        lambda: BatchPresetsScreen(),
        lambda: BatchJobsScreen(),
        lambda: BatchRowScreen(frozen(said), 12),
        lambda: BatchLeaveScreen(said("out.jsonl"), lambda: None),
        lambda: BatchResumeScreen(foreign(run, Path("/out.jsonl"))),
        lambda: LoadScreen(entry),
        lambda: TypesScreen(replace(BUILT, recipe=said("q4_k_m"))),
        lambda: SweepScreen((swept(said("a.gguf")), 0.0)),
    ]
    seen(Path(said("out.jsonl")))
    for make in panels:
        panel = await over(make())
        if isinstance(panel, LoadScreen):
            await wait_until(lambda panel=panel: panel.query("#load-memory"))  # type: ignore[misc]
        if isinstance(panel, SystemScreen):
            panel.query_one(OptionList).focus()
        if isinstance(panel, BatchPresetsScreen | BatchJobsScreen):
            await wait_until(lambda panel=panel: panel.found)  # type: ignore[misc]
            panel.query_one(Table).action_cursor_down()
        if isinstance(panel, BatchRowScreen):
            await wait_until(lambda panel=panel: panel.row is not None)  # type: ignore[misc]
        await pilot.pause()
        yield type(panel).__name__, panel
        await away(panel)

    listed = await over(ChatsScreen(store))
    await wait_until(lambda: listed.query_one(OptionList).option_count)
    yield "ChatsScreen", listed
    listed._undo.append(chat)
    listed.refresh_bindings()
    await pilot.pause()
    yield "ChatsScreen with something deleted", listed
    await away(listed)

    for several in (False, True):
        picker = await over(ModelsScreen([str(built)], several=several))
        await wait_until(lambda picker=picker: picker.query_one("#table").rows)  # type: ignore[misc]
        yield f"ModelsScreen{' for several' * several}", picker
        await away(picker)

    find = await over(FindScreen())
    await wait_until(lambda: find.query_one(BuildTable).display)
    await pilot.pause()
    yield "FindScreen", find
    await away(find)

    compare = await over(CompareScreen())
    await compare.choose([entry])
    yield "CompareScreen", compare
    compare._question = compare.comparison = object()  # nothing looks at it before it has gone
    yield "CompareScreen that was asked", compare
    compare.comparison = None
    await away(compare)

    prompts = await over(ComparePromptsScreen([entry, entry]))
    prompts.query_one("#prompts-form").refuse("limit", "no number")
    await pilot.pause()
    yield "ComparePromptsScreen", prompts
    prompts.results = judged(3, said)
    prompts.query_one("#prompt-rows").fill(prompts.results)
    prompts._offer()
    await pilot.pause()
    yield "ComparePromptsScreen with results", prompts
    await away(prompts)
    answers = await over(AnswersScreen(judged(3, said), 1))
    yield "AnswersScreen", answers
    await away(answers)
    ballot = Ballot(judged(3, said), Path("votes.jsonl"))
    ballot.say(ballot.pairs[0], Sided.TIE)
    blind = await over(BlindScreen(ballot))
    yield "BlindScreen", blind
    await away(blind)

    batch = await over(BatchScreen())
    await wait_until(lambda: batch.query("#input"))
    form = batch.query_one(BatchForm)
    form.refuse("model", "none")
    await pilot.pause()
    yield "BatchScreen", batch
    await batch.show(frozen(said))
    await wait_until(lambda: any(one.record is not None for one in batch.query(BatchTable)))
    await pilot.pause()
    yield "BatchScreen with a job", batch
    ended = frozen(said)
    ended.given = replace(ended.given, phase=Phase.STOPPED)
    await batch.show(ended)
    await wait_until(lambda: any(one._view is not None for one in batch.query(BatchJob)))
    await pilot.pause()
    yield "BatchScreen with a job that was stopped", batch
    await away(batch)

    quantize = await over(QuantizeScreen())
    await wait_until(lambda: quantize.query(FileTable))
    quantize._process = SimpleNamespace(running=True)
    yield "QuantizeScreen with a run", quantize
    quantize._process = None
    for page in ("run", "result"):
        await pilot.pause()  # a focus that has come meanwhile would turn back to its page
        if page == "result":
            result = read_result(built)
            first = result.rows[0]
            first = replace(first, entry=replace(first.entry, allocation=TYPES))
            quantize.query_one(QuantizeResult).show(replace(result, rows=(first, *result.rows[1:])))
        quantize._turn_to(page)
        await wait_until(lambda: quantize.query_one(TabbedContent).active == page)  # noqa: B023
        await pilot.pause()
        yield f"QuantizeScreen: {page}", quantize
    await away(quantize)

    monitor = await over(MonitorScreen())
    yield "MonitorScreen", monitor
    help = await over(HelpScreen(monitor))
    yield "HelpScreen", help
    await away(help)
    palette = await over(Palette(providers=[Commands]))
    await wait_until(lambda: palette.query_one(OptionList).option_count)
    yield "Palette", palette
    await away(palette)
    await away(monitor)
