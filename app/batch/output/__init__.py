"""The output file of a batch job: what a record holds, its forms (JSONL, OpenAI, CSV, Parquet), and
putting the file in place. Nothing here asks the model."""
