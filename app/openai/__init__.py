"""OpenAI's bodies: the parameters of a request, and log-probabilities of an answer. Reading a batch
line and writing one belong to `app.batch`."""
