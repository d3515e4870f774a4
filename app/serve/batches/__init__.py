"""/v1/files and /v1/batches: files on disk, and batches on the journal of `ingot batch`.
`service.py` has the batches, `work.py` what becomes of them, `files.py` the files, `routes.py` the
HTTP of both."""
