"""The input of a batch job: files to rows, rows to what the model is asked."""
