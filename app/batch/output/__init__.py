"""The output file of a batch job: records, their forms, and putting it in place."""
