"""`ingot serve`: models behind the HTTP API of OpenAI's clients."""

from functools import partial
from typing import Annotated

import typer

from app.cli.groups import with_groups
from app.cli.options import Reproducible
from app.options import MODEL_HELP, ModelOptions, PlanOptions
from app.serve.options import ServeOptions, ServeSampling

_NEEDED = {"fastapi", "prometheus_client", "python_multipart", "starlette", "uvicorn"}


@with_groups
def serve(
    server: ServeOptions,
    sampling: ServeSampling,
    options: ModelOptions,
    settings: PlanOptions,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]MODEL...",
            help=f"{MODEL_HELP} Clients ask for it by NAME, or by the name of its file or folder."
            " The first is loaded at once, the others when they are asked for.",
        ),
    ],
    reproducible: Reproducible = False,
) -> None:
    """Answer OpenAI's clients over HTTP on this machine."""
    from runtimes.errors import RequestError

    try:
        from app.serve.server import serve as run
    except ImportError as error:
        if error.name not in _NEEDED:
            raise
        raise RequestError("`ingot serve` needs FastAPI: `pip install 'ingot[serve]'`") from None
    from app.models.planning import choose
    from app.serve.pool import Entry, ModelPool, check_entries, name_of

    entries = []
    for given in models:
        name, model = name_of(given)
        chosen = partial(
            choose, model, options, settings, "batch", server.slots, reproducible=reproducible
        )
        entries.append(Entry(name, chosen, fixed_slots=server.slots is not None))
    pool = ModelPool(entries, None if server.memory is None else int(server.memory * 2**30))
    check_entries(entries)
    run(pool, server, sampling.params())
