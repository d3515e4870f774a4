"""The texts that a target is found with: to measure sensitivities on, and to measure tries on. They
share nothing with each other, nor with the one that has the verdict."""

from dataclasses import dataclass
from pathlib import Path

from quantize.errors import UsageError
from quantize.gguf.imatrixfile import is_matrix
from quantize.options import Options
from quantize.quality.text import BUNDLED
from quantize.source import SourceModel
from quantize.source.files import CALIBRATION

_BUNDLED = BUNDLED.with_name(CALIBRATION)
_LEAST = 4_000  # characters
_MOST = 400_000  # characters; more is not needed
_SHARE = 2 / 3  # of the text for sensitivities, the rest for tries
_PASSAGE, _EVERY = 200, 100  # characters that two texts have in common only if one has the other's


@dataclass(frozen=True, slots=True)
class Texts:
    """Two parts of one text."""

    calibrate: str
    tune: str

    def write(self, folder: Path) -> "TextFiles":
        """As files in ``folder``."""
        files = TextFiles(folder / "calibrate.txt", folder / "tune.txt")
        files.calibrate.write_text(self.calibrate, encoding="utf-8")
        files.tune.write_text(self.tune, encoding="utf-8")
        return files


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Where they are."""

    calibrate: Path
    tune: Path


def calibration_text(options: Options, source: SourceModel) -> Path:
    """The text that the user gave for the importance matrix, else the model's own, else the one
    that is bundled."""
    if options.imatrix is not None and not is_matrix(options.imatrix):
        return options.imatrix
    own = source.folder / CALIBRATION
    return own if own.is_file() else _BUNDLED


def split_texts(given: Path, final: Path | None) -> Texts:
    """``given`` in two parts. Raises UsageError if it cannot be read, is too short, or has a
    passage of ``final``, or of itself, twice."""
    text = _read(given)
    cut = text.rfind("\n", 0, int(len(text) * _SHARE)) + 1 or int(len(text) * _SHARE)
    parts = text[:cut], text[cut:]
    verdict = _read(final or BUNDLED)
    for one, other, names in (
        (parts[0], verdict, f"{given.name} and {(final or BUNDLED).name}"),
        (parts[1], verdict, f"{given.name} and {(final or BUNDLED).name}"),
        (parts[0], parts[1], f"the two parts of {given.name}"),
    ):
        if passage := _shared(one, other):
            raise UsageError(
                f"{names} share a passage ({passage[:40]!r} ...): what is measured on a text that"
                " was learnt from says nothing. Give another one with --imatrix or --measure-text"
            )
    if len(text) < _LEAST:
        raise UsageError(
            f"{given} has {len(text):,} characters: give at least {_LEAST:,}, to choose types by"
        )
    return Texts(*parts)


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_MOST)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}") from error


def _shared(one: str, other: str) -> str | None:
    """A passage of ``one`` that ``other`` has too."""
    one, other = " ".join(one.split()), " ".join(other.split())
    passages = (one[at : at + _PASSAGE] for at in range(0, len(one) - _PASSAGE, _EVERY))
    return next((passage for passage in passages if passage in other), None)
