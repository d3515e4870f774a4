"""System messages with sampling under a name: some that come with the app, and the user's own,
which are in the file of the settings and stand before those of the same name."""

from pathlib import Path

from app.config import files
from app.config.settings import BUILT_IN, Config, ConfigError, Preset


def all_presets(config: Config) -> tuple[Preset, ...]:
    """The user's own, then the others, each name once."""
    own = {preset.name.lower() for preset in config.presets}
    return (*config.presets, *(one for one in BUILT_IN if one.name.lower() not in own))


def find(config: Config, name: str) -> Preset:
    """The preset of this name. Raises ConfigError naming those that there are."""
    for preset in all_presets(config):
        if preset.name.lower() == name.strip().lower():
            return preset
    known = ", ".join(preset.name for preset in all_presets(config))
    raise ConfigError(f"there is no preset {name}; there are: {known}")


def save(preset: Preset, path: Path | None = None) -> Preset:
    """Write a preset of the user's to the file of the settings (or to ``path``), in place of one of
    the same name; as it was written. Raises ConfigError."""
    name = " ".join(preset.name.split())
    if not name or not name.isprintable():
        raise ConfigError("a preset needs a name, in one line")
    system = preset.system.strip() if preset.system else None
    kept = Preset(name, system or None, dict(preset.sampling))
    files.set_preset(kept, path)
    return kept


def delete(config: Config, name: str, path: Path | None = None) -> None:
    """Take a preset of the user's out of the file. Raises ConfigError for one that comes with the
    app, and for one that there is not."""
    if files.remove_preset(name, path):
        return
    find(config, name)
    raise ConfigError(f"{name} comes with the app; one of yours by that name would stand before it")
