"""`ingot serve`: models behind the HTTP API of OpenAI's clients. `server.py` makes the
application and runs it, `pool.py` has the models, `generate.py` one request; `*_routes.py` the
paths."""
