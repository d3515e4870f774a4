"""A model from the hub: only the files that a build needs, the small ones first."""

from pathlib import Path

from quantize.errors import SourceError, UsageError
from quantize.hub.client import Hub, Listing
from quantize.hub.names import HubName
from quantize.hub.store import Store
from quantize.options import SourceOptions
from quantize.progress.console import Reporter
from quantize.source.checks import require_floats, require_no_code
from quantize.source.files import CONFIG, INDEX, read_json, wanted

_WEIGHTS = (".safetensors", ".bin")


def download_model(
    name: HubName, options: SourceOptions, progress: Reporter, hub: Hub | None = None
) -> tuple[Path, str]:
    """The folder with the model's files, and the commit that they are of.

    What can be refused by configuration alone is refused before any weights are fetched. Raises as
    ``open_source``.
    """
    store = Store(name, progress, hub or Hub())
    listing = store.listing()
    names = wanted(
        (file.path for file in listing.files),
        pickle=options.allow_pickle,
        code=options.trust_remote_code,
    )
    _require_model(name, listing, names)
    chosen = {file for file in listing.files if file.path in names}
    small = [file for file in chosen if not file.path.endswith(_WEIGHTS)]
    folder = store.bring(listing, small)
    config = read_json(folder / CONFIG, "it is not a Hugging Face model")
    if not options.trust_remote_code:
        require_no_code(folder, config)
    require_floats(folder, config, {})
    if (folder / INDEX).is_file():  # shards of another set may lie beside the ones it lists
        places = read_json(folder / INDEX, "the list of weight files is damaged").get("weight_map")
        listed = list(places.values()) if isinstance(places, dict) else []
        chosen -= {f for f in chosen if f.path.endswith(_WEIGHTS) and f.path not in listed}
    everything = [file for file in listing.files if file in chosen]
    return store.bring(listing, everything), listing.commit


def _require_model(name: HubName, listing: Listing, names: set[str]) -> None:
    """Say what the repository holds instead of a model, before anything is fetched."""
    present = [file.path for file in listing.files]
    if any(path.endswith(_WEIGHTS) for path in names) and CONFIG in names:
        return
    if any(path.endswith(".gguf") for path in present):
        raise UsageError(
            f"{name} holds ready GGUF files, not a model to build from; get one with"
            f" `ingot pull {name.repo}`"
        )
    if any(path.endswith("adapter_config.json") for path in present):
        raise UsageError(
            f"{name} is a LoRA adapter: name its base model, and give this one with --lora"
        )
    if any(path.endswith(".bin") and "/" not in path for path in present):
        raise SourceError(
            f"{name} has weights in pickle form only, which can run code; --allow-pickle converts"
            " them with torch's safe loader"
        )
    what = "no weights in safetensors" if CONFIG in names else "no config.json"
    raise SourceError(f"{name} has {what}; it is not a model that can be built from")
