"""Which models a server has, and under which names clients ask for them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.adapters import AdapterFile
from app.models.planning import LoadChoice
from runtimes.errors import IngotError, RequestError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is served. ``choose`` says what to load: it is asked before each load."""

    name: str
    choose: Callable[[], LoadChoice]
    fixed_slots: bool = False
    aliases: Sequence[str] = ()  # other names that clients may ask for it by
    adapters: Sequence[str] = ()  # of those that ``choose`` has; each is asked for as NAME:ADAPTER
    added: Sequence[AdapterFile] = ()  # while the server runs, beside those

    def names(self) -> Iterator[tuple[str, str | None]]:
        """Each with the adapter that it means; None for the model as it is."""
        for own in (self.name, *self.aliases):
            yield own, None
            for adapter in (*self.adapters, *(one.name for one in self.added)):
                yield f"{own}:{adapter}", adapter


def by_name(entries: Sequence[ServedModel]) -> dict[str, tuple[ServedModel, str | None]]:
    """What each name means: a model, or one with an adapter. Raises RequestError for two of one
    name."""
    known: dict[str, tuple[ServedModel, str | None]] = {}
    for entry in entries:
        for name, adapter in entry.names():
            if name in known:
                said = f"two models are called {name}: give one a name, as in NAME=MODEL"
                raise RequestError(said)
            known[name] = entry, adapter
    return known


def name_of(model: str) -> tuple[str, str]:
    """Name and MODEL of what stands on the command line: NAME=MODEL, or MODEL, which is called as
    its file or folder, or as the library calls it. Raises RequestError for an empty name."""
    name, separator, rest = model.partition("=")
    if separator and not Path(model).exists():
        if not name or not rest:
            raise RequestError(f"{model!r}: a name and a model belong around =, as in small=MODEL")
        return name, rest
    path = Path(model)
    if not path.exists():
        return model, model
    return path.resolve().name.removesuffix(".gguf"), model


def check_entries(entries: Sequence[ServedModel]) -> None:
    """Raises what is wrong with a model that will be loaded later: its file is looked at now."""
    for entry in entries:
        try:
            entry.choose()
        except IngotError as error:
            if entry.name not in str(error):
                error.args = (f"{entry.name}: {error}",)
            raise
