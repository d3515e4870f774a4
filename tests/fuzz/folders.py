"""Folders that come from elsewhere: a model with what lies beside it in the same archive, full of
links, paths that lead out, odd kinds of files and odd JSON, and a hub that lies. Whatever Ingot
does with them, no file elsewhere changes."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from app.builds.results import read_result, remove_file
from app.doctor.report import check_files
from app.models import library
from app.models.catalog import catalog, entry_of
from app.models.pulling import parse_request, pull
from quantize.build.preflight import require_fitting
from quantize.build.run import is_build
from quantize.build.workspace import WORK, Workspace, disk_errors
from quantize.hub.client import Hub, HubName, Patience
from quantize.hub.transfer import Store, push
from quantize.lora import open_adapter
from quantize.manifest import (
    NAME,
    FileEntry,
    Manifest,
    ModelInfo,
    ModelOrigin,
    digest,
    is_whole,
    load_manifest,
)
from quantize.options import Options, SourceOptions
from quantize.quality.fidelity import load_reference
from quantize.quality.text import read_questions
from quantize.report.write import FILES, write_report
from quantize.resolve import resolve
from quantize.source import open_source
from quantize.stages import RECORD, Stages, source_inputs, stage_key
from runtimes.errors import IngotError
from runtimes.models.modelfile import fingerprint
from runtimes.models.registry import read_model
from tests.fuzz.cases import ROOT, Case, loop
from tests.fuzz.headers import varint
from tests.fuzz.mutate import dumped, mutated, nested
from tests.quantize.hub.fakehub import FakeHub
from tests.quantize.hub.hubs import Notes, small_model
from tests.support import furnish

PEBBLE = ROOT / "assets" / "pebble"
KEY = stage_key("build", {"recipe": "q8_0"})
_HASTY = Hub(Patience(read_s=3.0, attempts=1, pause_s=0.01, wait_s=0.05))
_OURS = (NAME, "library.json", *FILES, "m-q8_0.gguf", "onnx-int4", "model-q8_0.gguf")
_COMMANDS_EVERY = 20  # cases; a command takes seconds
_ENTRY = FileEntry(
    "gguf", "q8_0", 8, "m-q8_0.gguf", 3, {"m-q8_0.gguf": "0" * 64}, ModelOrigin("m", "h"), {}
)


def elsewhere(base: Path) -> Path:
    """A user's own files, which are nobody's business."""
    folder = base / "elsewhere"
    (folder / "photos" / "2026").mkdir(parents=True)
    (folder / "stages").mkdir()
    for name in ("letter.txt", "README.md", "manifest.json", "photos/2026/a.jpg", "stages/x"):
        (folder / name).write_bytes(f"mine: {name}\n".encode())
    (folder / "m-q8_0.gguf").write_bytes(b"GGUF")
    (folder / "latest").symlink_to("photos/2026")
    return folder


def seen(folder: Path) -> dict[str, object]:
    """Names, kinds, modes, times, contents and link targets of everything below ``folder``."""
    found: dict[str, object] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        about = path.lstat()
        inner: object = None
        if path.is_symlink():
            inner = os.readlink(path)
        elif path.is_file():
            inner = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        found[name] = about.st_mode, about.st_mtime_ns, inner
    return found


def fill(folder: Path, random: Random, theirs: Path, small: Path) -> None:
    """Make a hostile folder of the empty ``folder``. ``small`` is a whole model to copy."""
    shutil.copytree(small, folder / "model")
    maker = _Maker(random, theirs)
    for name in ("model-built", "built"):
        maker.built(folder / name)
    maker.model(folder / "model")
    maker.adapter(folder / "adapter")
    maker.onnx(folder / "onnx")


class _Maker:
    """Makes hostile things. Every link and path leads to ``theirs`` or into the folder itself, so
    that a defect costs nobody a file."""

    def __init__(self, random: Random, theirs: Path) -> None:
        self.random, self.theirs = random, theirs

    def maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    def target(self) -> Path:
        inner = ("", "letter.txt", "README.md", "photos", "photos/2026/a.jpg", "stages", "latest")
        return self.theirs / self.random.choice((*inner, "m-q8_0.gguf", "nothing", NAME))

    def name(self, folder: Path) -> Any:
        """What a record may say instead of a file's name."""
        target = self.target()
        up = os.path.relpath(target, folder)
        odd = ("", ".", "..", "a//b", "a\\..\\b", "C:\\x", "C:x", "x\n", "x\0", "\x1b]0;x\x07")
        more = (
            "\ud800",
            "a" * 300,
            "é" * 200,
            7,
            None,
            ["x"],
            {"a": "b"},
            1.5,
            True,
            "link/letter.txt",
        )
        ours = (WORK, f"{WORK}/stages", NAME, "README.md", "m-q8_0.gguf", "onnx-int4")
        places = (up, str(target), f"a/../{up}", f"./{up}", f"{up}/", f"//{target}", f"sub/../{up}")
        return self.random.choice(self.random.choice((places, places, odd, more, ours)))

    def odd_file(self, path: Path) -> None:
        """Something else in the place of ``path``: a link, a second name, a folder, a pipe."""
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            match self.random.randrange(8):
                case 0 | 1 | 2:
                    path.symlink_to(self.target())
                case 3:
                    path.symlink_to(os.path.relpath(self.target(), path.parent))
                case 4:
                    path.hardlink_to(self.theirs / "README.md")
                case 5:
                    path.mkdir()
                    (path / "x").symlink_to(self.target())
                case 6:
                    os.mkfifo(path)
                case _:
                    path.symlink_to(path.name)  # a loop

    def text(self, value: Any) -> bytes:
        """JSON as it is, or changed, nested, cut, larger than is read."""
        match self.random.randrange(8):
            case 0 | 1 | 2:
                return json.dumps(value).encode()
            case 3 | 4 | 5:
                return dumped(mutated(value, self.random), self.random)
            case 6:
                return str(nested(self.random)).encode()
            case _:
                return self.random.choice((b"", b"{", b"\xff\xfe{}", b"null", b"[]", b" " * 10**6))

    def write(self, path: Path, value: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() or path.is_symlink():
            return
        path.unlink(missing_ok=True)
        if self.maybe(0.03):
            with path.open("wb") as file:
                file.truncate(2**25 + 1)
            return
        path.write_bytes(self.text(value))

    def manifest(self, folder: Path) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(Manifest(ModelInfo("m", "L", 5), (_ENTRY,)).to_json())
        data["model"]["name"] = self.random.choice(("m", "model", "model", "other"))
        entry = data["files"][0]
        entry["format"] = self.random.choice(("gguf", "onnx"))
        if self.maybe(0.6):
            entry["path"] = self.name(folder)
        if self.maybe(0.4):
            entry["sha256"] = {str(self.name(folder)): self.random.choice(("0" * 64, "x", ""))}
        if self.maybe(0.2):
            data["files"].append({**entry, "recipe": "q4_0", "path": self.name(folder)})
        return data

    def built(self, out: Path) -> None:
        """An output folder with a work folder in it."""
        if out.name == "model-built" and self.maybe(0.05):
            out.symlink_to(self.theirs)  # refused by `require_fitting`
            return
        out.mkdir()
        (out / "m-q8_0.gguf").write_bytes(b"abc")
        if self.maybe(0.3):
            (out / self.random.choice(("link", "sub", "onnx-int4"))).symlink_to(self.theirs)
        self.write(out / NAME, self.manifest(out))
        work = out / WORK
        if self.maybe(0.7):
            self.write(work / NAME, self.manifest(out))
        if self.maybe(0.7):
            self.stages(work / "stages")
        if self.maybe(0.4):
            for name in self.random.sample(("scratch", "stages", "child-1", NAME, "a\nb", ".x"), 2):
                self.odd_file(work / name)
        if self.maybe(0.1):
            self.odd_file(work)
        if self.maybe(0.5):
            for name in self.random.sample(_OURS, 3):
                self.odd_file(out / self.random.choice((name, name, f".{name}.partial")))

    def stages(self, root: Path) -> None:
        record = {
            "key": KEY,
            "owner": "owner",
            "value": {"notes": [], "route": "r", "imatrix": None},
        }
        stage = root / f"build-{KEY[:16]}"
        stage.mkdir(parents=True)
        (stage / "m-q8_0.gguf").write_bytes(b"abc")
        found = digest(stage / "m-q8_0.gguf")
        files = {"m-q8_0.gguf": {"bytes": found.bytes, "sha256": found.sha256}}
        if self.maybe(0.3):
            files = {str(self.name(stage)): files["m-q8_0.gguf"]}
        self.write(stage / RECORD, record | {"files": files})
        if self.maybe(0.4):
            self.odd_file(stage / self.random.choice(("m-q8_0.gguf", RECORD, "extra", "deep/x")))
        for name in ("float-reference", "more"):
            if self.maybe(0.3):
                self.odd_file(root / name)
        self.write(root / "reference" / "reference.json", {"windows": {"ids": [[1]], "first": 0}})

    def model(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        if self.maybe(0.5):
            self.write(folder / "config.json", config)
        if self.maybe(0.5):
            shards = {f"t{i}": self.name(folder) for i in range(self.random.randrange(1, 4))}
            kind = self.random.choice(("model.safetensors", "pytorch_model.bin"))
            self.write(folder / f"{kind}.index.json", {"weight_map": shards})
        for name in ("graded.jsonl", "generation_config.json", "tokenizer_config.json"):
            if self.maybe(0.3):
                self.write(folder / name, {"auto_map": None, "messages": [{"role": 1}]})
        if self.maybe(0.6):
            names = [path.name for path in folder.iterdir()]
            for name in (*self.random.sample(names, 2), "evaluation.txt", "calibration.txt"):
                if self.maybe(0.5):
                    self.odd_file(folder / name)

    def adapter(self, folder: Path) -> None:
        folder.mkdir()
        config = {"peft_type": "LORA", "r": 8, "base_model_name_or_path": self.name(folder)}
        self.write(folder / "adapter_config.json", config)
        if self.maybe(0.5):
            self.odd_file(folder / "adapter_model.safetensors")
        else:
            shutil.copyfile(PEBBLE / "config.json", folder / "adapter_model.safetensors")

    def onnx(self, folder: Path) -> None:
        """A graph whose one weight lies in a file that its location names."""
        folder.mkdir()
        own = ROOT / "runtimes" / "onnx" / "selftest"
        for path in own.iterdir():
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
        config = json.loads((own / "genai_config.json").read_text())
        if self.maybe(0.6):
            config["model"]["decoder"]["filename"] = self.name(folder)
        self.write(folder / "genai_config.json", config)
        location = str(self.name(folder)).encode("utf-8", "replace")
        self.odd_graph(folder / "model.onnx", location)
        if self.maybe(0.3):
            self.odd_file(folder / self.random.choice(("model.onnx", "model.onnx.data")))

    def odd_graph(self, path: Path, location: bytes) -> None:
        def part(field: int, data: bytes) -> bytes:
            return varint(field << 3 | 2) + varint(len(data)) + data

        entry = part(13, part(1, b"location") + part(2, location))
        tensor = b"\x08\x04\x10\x01" + part(8, b"weight") + entry + b"\x70\x01"
        if self.maybe(0.7):
            path.write_bytes(part(7, part(5, tensor)))

    def lie(self, said: dict[str, Any]) -> dict[str, Any]:
        """What a hub says of a repository, with names, checksums and commits from elsewhere."""
        said = json.loads(json.dumps(said))
        for one in said["siblings"]:
            match self.random.randrange(7):
                case 0:
                    one["rfilename"] = self.name(library.library_dir())
                case 1:
                    place = self.name(library.library_dir() / ".arriving" / "org--odd")
                    one["lfs"] = {"size": one["size"], "sha256": place, "pointerSize": 1}
                case 2:
                    one |= {"blobId": self.name(library.library_dir()), "lfs": None}
                case 3:
                    one["size"] = self.random.choice((-1, "5", None, 2**70, 0))
        if self.maybe(0.3):
            said["sha"] = self.name(library.library_dir())
        return said


def _steps(folder: Path, maker: _Maker, hub: FakeHub) -> list[Callable[[], object]]:
    """What users do with such a folder."""
    out, model, built = folder / "model-built", folder / "model", folder / "built"
    asked = SourceOptions(str(model), allow_pickle=maker.maybe(0.3))

    def build() -> None:
        source = open_source(asked)
        require_fitting(Options(asked, ()), source, source.default_out)
        source_inputs(source, source.fingerprint())

    def work(where: Path, *, fresh: bool) -> None:
        # By itself, whatever the model is like.
        if where.is_symlink():
            return
        with disk_errors(where), Workspace(where) as space:
            stages = Stages(space.stages, maker.random.choice(("owner", "x")), fresh=fresh)
            space.open(ModelInfo("m", "L", 5))
            found = stages.find("build", KEY, is_build)
            load_reference_of(space.stages)
            made = space.work / "m-q8_0.gguf"
            if found and maker.maybe(0.5):
                made = found.folder / "m-q8_0.gguf"
            else:
                made.write_bytes(b"new")
            space.publish(_ENTRY, made)
            space.update(_ENTRY)
            tree = space.work / "onnx-int4"
            tree.mkdir()
            (tree / "model.onnx").write_bytes(b"new")
            space.move_out(tree, "onnx-int4")
            if maker.maybe(0.1):
                write_report(where, space.manifest, space.work)
            if maker.maybe(0.3):
                raise IngotError("the build fails")

    def load_reference_of(root: Path) -> None:
        if root.joinpath("reference").is_dir():
            with contextlib.suppress(IngotError):
                load_reference(root / "reference")

    def look() -> None:
        catalog([built, out, folder / "onnx", model])
        if (built / "m-q8_0.gguf").is_file():
            entry_of(built / "m-q8_0.gguf")
        for where in (built, out, folder / "onnx", model):
            with contextlib.suppress(IngotError):
                read_model(resolve(where))
            with contextlib.suppress(IngotError):
                [*check_files(str(where))]
            with contextlib.suppress(IngotError):
                read_result(where)

    def read_onnx() -> None:
        fingerprint(read_model(folder / "onnx"))

    def remove() -> None:
        with disk_errors(built):
            for entry in load_manifest(built).files:
                is_whole(built, entry)
                (built / "report.html").unlink(missing_ok=True)  # writing it takes a process
                remove_file(built, entry.recipe)

    def upload() -> None:
        push(built, "me/odd", Notes())

    def bring() -> None:
        hub.lie = maker.lie
        with contextlib.suppress(IngotError):
            pull(parse_request("org/odd:Q8_0"), Notes(), _HASTY)
        store = Store(HubName("org/odd"), Notes(), _HASTY)
        listing = store.listing()
        store.bring(listing, listing.files)

    def forget() -> None:
        record = library.library_dir() / "org" / "kept" / "library.json"
        build = {"label": "Q8_0", "kind": "gguf", "main": maker.name(record.parent), "commit": "c"}
        name = str(maker.name(record.parent))
        build |= {"bytes": {name: 3}, "sha256": {name: "0" * 64}}
        maker.write(record, {"builds": [build, build | {"label": "Q4_0", "main": "x"}]})
        if maker.maybe(0.3) and not (record.parent / "link").is_symlink():
            (record.parent / "link").symlink_to(maker.theirs)
        for one in library.models():
            with contextlib.suppress(IngotError):
                library.locate(one.repo)
            library.remove(one, one.builds[0] if one.builds and maker.maybe(0.7) else None)

    def graded() -> None:
        if (model / "graded.jsonl").is_file():
            read_questions(model / "graded.jsonl")

    def build_beside() -> None:
        work(out, fresh=maker.maybe(0.2))

    def adapt() -> None:
        open_adapter(str(folder / "adapter"), Notes())

    return [
        build,
        build_beside,
        look,
        read_onnx,
        remove,
        upload,
        adapt,
        bring,
        forget,
        graded,
        lambda: work(built, fresh=False),
        lambda: (
            write_report(built, Manifest(ModelInfo("m", "L", 5))) if maker.maybe(0.05) else None
        ),
    ]


def _command(folder: Path, number: int, home: Path, url: str) -> str:
    """A real command; its name and how it ended. Raises AssertionError where it says that Ingot
    has a defect."""
    built, ingot = folder / "built", ("-m", "app")
    commands = (
        ("-m", "quantize", folder / "model", "--recipe", "q8_0", "--no-measure"),
        (*ingot, "run", built, "hi", "--max-tokens", "1"),
        (*ingot, "doctor", "--checksums", built),
        (*ingot, "plan", built),
        (*ingot, "run", folder / "onnx", "hi"),
        (*ingot, "pull", "org/odd:Q8_0"),
        (*ingot, "models"),
    )
    chosen = commands[number % len(commands)]
    if number % len(commands) == 0:  # a model that can be built, whatever lies beside it
        shutil.rmtree(folder / "model")
        shutil.copytree(PEBBLE, folder / "model")
    environment = {**os.environ, "INGOT_HOME": str(home), "HF_ENDPOINT": url}
    done = subprocess.run(
        [sys.executable, *map(str, chosen)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    said = done.stderr.decode("utf-8", "replace")
    assert 0 <= done.returncode < 70, f"{chosen[2]}: exit {done.returncode}: {said[-2000:]}"
    assert "Traceback" not in said, f"{chosen[2]}: {said[-3000:]}"
    return f"{'quantize' if chosen[1] == 'quantize' else chosen[2]}_exit_{done.returncode}"


def _keepable(folder: Path) -> None:
    """Take out of a case that is to be kept what cannot be copied."""
    for path in folder.rglob("*"):
        if path.is_fifo():
            path.unlink()


def run(
    seconds: float, seed: int, count: int | None = None, *, commands: bool = True
) -> dict[str, int]:
    """Figures of what was tried; raises FoundError where a file elsewhere has changed."""
    logging.getLogger("httpx2").setLevel(logging.CRITICAL)
    hub = FakeHub()
    hub.add("org/odd", {"odd-Q8_0.gguf": b"GGUF" * 30, "config.json": b"{}"})
    token = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_good", "HF_HUB_DISABLE_XET": "1"}
    with (
        tempfile.TemporaryDirectory(prefix="ingot-folders-") as base,
        mock.patch.dict(os.environ, token),
    ):
        small = small_model(PEBBLE, Path(base, "small", "model"))
        theirs, home = elsewhere(Path(base, "user")), Path(base, "home")
        furnish(home)
        before = seen(theirs)

        def one(case: Case) -> None:
            nonlocal before
            maker = _Maker(case.random, theirs)
            fill(case.folder, case.random, theirs, small)
            steps = _steps(case.folder, maker, hub)
            if commands and case.number % _COMMANDS_EVERY == 0:
                number = case.number // _COMMANDS_EVERY
                hub.lie = maker.lie

                def command() -> None:
                    case.figures[_command(case.folder, number, home, hub.url)] += 1

                steps.append(command)
            for step in steps:
                try:
                    step()
                    case.figures["steps_done"] += 1
                except (IngotError, IsADirectoryError, NotADirectoryError) as error:
                    # These have words and exit code 2 as well.
                    case.figures["steps_refused"] += 1
                    str(error)
                except BaseException:
                    _keepable(case.folder)
                    raise
                finally:
                    if (now := seen(theirs)) != before:
                        _keepable(case.folder)
                        changed = {
                            n for n in before.keys() | now.keys() if before.get(n) != now.get(n)
                        }
                        shutil.rmtree(theirs)
                        elsewhere(theirs.parent)
                        before = seen(theirs)
                        raise AssertionError(f"{step.__name__} changed {sorted(changed)} elsewhere")
            case.figures["folders"] += 1

        try:
            return loop("folders", one, seconds, seed, count)
        finally:
            hub.close()
