"""/v1/files and /v1/batches: files on disk, and batches on the journal of `ingot batch`.
`store.py` has files and batches, `work.py` runs the batches, `routes.py` is the HTTP of both."""
