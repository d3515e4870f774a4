"""System messages with sampling under a name: some that come with the app, and the user's own,
which are in the file of the settings and stand before those of the same name."""

from app.config.files import editing, remove
from app.config.settings import BUILT_IN, Config, ConfigError, Preset, check


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


def save(preset: Preset) -> None:
    """Write a preset of the user's to the file of the settings, in place of all that one of the
    same name has had. Raises ConfigError as ``set_value``."""
    import tomlkit

    name = " ".join(preset.name.split())
    if not name or not name.isprintable():
        raise ConfigError("a preset needs a name, in one line")
    table = tomlkit.table()
    if system := (preset.system or "").strip():
        table["system"] = system
    for key, value in preset.sampling.items():
        good = check(f"presets.{name}.sampling.{key}", value)
        table.setdefault("sampling", tomlkit.inline_table())[key] = good
    with editing() as (file, document):
        presets = document.setdefault("presets", tomlkit.table(is_super_table=True))
        if not isinstance(presets, dict):
            raise ConfigError(f"{file}: presets must be a table")
        document["presets"][name] = table


def delete(config: Config, name: str) -> None:
    """Take a preset of the user's out of the file. Raises ConfigError for one that comes with the
    app, and for one that there is not."""
    if remove(("presets", name)):
        return
    find(config, name)
    raise ConfigError(f"{name} comes with the app; one of yours by that name would stand before it")
