"""Settings of a run: checked, and written as the command that does it."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from app.here import at_home
from quantize.errors import UsageError
from quantize.hub.client import parse_hub_name
from quantize.options import MeasureOptions, Options, SourceOptions
from quantize.recipes import PRESETS, RECIPES, Recipe, choose_recipes, find_recipe, known_recipe

TARGETS = "kl0.02, 1.2GB, 4.5bpw or fits-8GB-8192"
DEFAULT_RECIPES = tuple(recipe.name for recipe in choose_recipes())


class FieldError(UsageError):
    """``field`` of `Settings` cannot be used as it is."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True, slots=True)
class Settings:
    """Values as the user typed them; "" is left to quantize."""

    model: str
    recipes: tuple[str, ...] = DEFAULT_RECIPES
    targets: str = ""  # by name, such as "kl0.02, 1.2GB"
    out: str = ""
    imatrix: str = ""
    lora: str = ""
    measure: bool = True
    fresh: bool = False

    def options(self) -> Options:
        """Read the values as the command does. Raises FieldError that says what to change."""
        if not self.model.strip():
            raise FieldError("model", "name a model: a folder, a .gguf file of floats, or ORG/NAME")
        targets = tuple(_target(name) for name in self.target_names)
        if not self.recipes and not targets:
            raise FieldError("recipes", "choose at least one recipe")
        if not self.from_hub and not _path(self.model).exists():
            raise FieldError(
                "model", f"there is no folder {self.model}; on the hub models are ORG/NAME"
            )
        if self.imatrix and not _path(self.imatrix).is_file():
            raise FieldError("imatrix", f"there is no file {self.imatrix}")
        return Options(
            SourceOptions(self.source, lora=_given(self.lora)),
            (*(find_recipe(name) for name in self.recipes), *targets),
            out=_path(self.out) if self.out.strip() else None,
            measure=MeasureOptions(enabled=self.measure),
            imatrix=_path(self.imatrix) if self.imatrix.strip() else None,
            fresh=self.fresh,
        )

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of targets, each once, as typed."""
        return tuple(dict.fromkeys(n for n in re.split(r"[,;\s]+", self.targets.lower()) if n))

    @property
    def source(self) -> str:
        """MODEL for the command: ~ means the home folder, as in a shell."""
        return self.model.strip() if self.from_hub else str(_path(self.model))

    @property
    def from_hub(self) -> bool:
        """Whether it is a name on the hub; a folder of that name comes first."""
        return not _path(self.model).exists() and parse_hub_name(self.model.strip()) is not None

    def arguments(self) -> list[str]:
        """Return the arguments of `quantize`; raises FieldError as ``options``."""
        options = self.options()
        recipes = ",".join(recipe.name for recipe in options.recipes)
        given = {"--out": options.out, "--imatrix": options.imatrix, "--lora": options.source.lora}
        pairs = [(flag, str(value)) for flag, value in given.items() if value is not None]
        flags = ["--no-measure"] * (not self.measure) + ["--fresh"] * self.fresh
        return [self.source, "--recipe", recipes, *itertools.chain(*pairs), *flags]


def offered() -> tuple[Recipe, ...]:
    """Every recipe for processors: the usual ones first, then llama.cpp's further types, then
    floats."""
    here = [name for name, recipe in RECIPES.items() if not recipe.for_gpus]
    others = sorted(here, key=lambda name: RECIPES[name].is_float)
    return tuple(RECIPES[name] for name in dict.fromkeys((*DEFAULT_RECIPES, *PRESETS, *others)))


def estimated_size(parameters: int, recipe: Recipe) -> int:
    """Bytes of a file by its bits a weight. Small models' files are larger: their embedding, which
    keeps more bits, is more of them."""
    return int(parameters * recipe.bits_per_weight / 8)


def _target(name: str) -> Recipe:
    try:
        found = known_recipe(name)
    except UsageError as error:
        raise FieldError("targets", str(error)) from error
    if found is None or found.target is None:
        raise FieldError("targets", f"{name} is no target, such as {TARGETS}")
    return found


def _path(text: str) -> Path:
    return at_home(text.strip())


def _given(text: str) -> str | None:
    """A folder or a name on the hub."""
    path = _path(text)
    return (str(path) if path.exists() else text.strip()) if text.strip() else None
