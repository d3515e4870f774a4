"""`ingot serve`: models behind the HTTP API of OpenAI's clients."""

from functools import partial

from app.cli.options import REPRODUCIBLE, with_groups
from app.options import MODEL_HELP, ModelOptions, PlanOptions, argument
from app.serve.options import ServeAdapters, ServeOptions, ServeSampling

_NEEDED = {"fastapi", "prometheus_client", "pydantic", "python_multipart", "starlette", "uvicorn"}


@with_groups
def serve(
    server: ServeOptions,
    sampling: ServeSampling,
    options: ModelOptions,
    adapters: ServeAdapters,
    settings: PlanOptions,
    models: list[str] = argument(
        f"{MODEL_HELP} Clients ask for it by NAME, or by the name of its file or folder. The first"
        " is loaded at once, the others when they are asked for.",
        metavar="[NAME=]MODEL...",
    ),
    reproducible: bool = REPRODUCIBLE,
) -> None:
    """Answer OpenAI's clients over HTTP on this machine."""
    from runtimes.errors import RequestError

    try:
        from app.serve.server import serve as run
    except ImportError as error:
        if error.name not in _NEEDED:
            raise
        raise RequestError("`ingot serve` needs FastAPI: `pip install 'ingot[serve]'`") from None
    from app.adapters import name_and_path
    from app.config.files import load
    from app.models.planning import choose
    from app.models.prefixes import shared_prefixes
    from app.options import with_own
    from app.serve.pool import ModelPool, ServedModel, check_entries, name_of
    from runtimes.planner.plan import DEPTHS

    config = load().checked()
    entries = []
    named = [name_of(given) for given in models]
    beside = adapters.by_model([name for name, _ in named])
    for name, model in named:
        own = config.models.get(name, {})
        which, how = with_own(options, own), with_own(settings, own)
        slots = own.get("slots") if server.slots is None else server.slots
        chosen = partial(
            choose,
            model,
            which,
            how,
            "batch",
            slots,
            reproducible=reproducible,
            adapters=beside[name],
            depth=DEPTHS["serve"],
        )
        entries.append(
            ServedModel(
                name,
                chosen,
                fixed_slots=slots is not None,
                aliases=own.get("aliases", ()),
                adapters=[name_and_path(given)[0] for given in beside[name]],
            )
        )
    budget = None if server.memory is None else int(server.memory * 2**30)
    pool = ModelPool(entries, budget, shared_prefixes(server.saved_mb))
    check_entries(entries)
    run(pool, server, sampling.params())
