"""`ingot serve`: models behind the HTTP API of OpenAI's clients. `server.py` runs it, `http.py` is
the application, `pool.py` has the models, `generate.py` one request; `*_routes.py` the
paths."""
