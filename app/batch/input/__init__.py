"""The input of a batch job: its formats, its rows, and what each row asks the model. It is read
again for each pass. Asking the model and keeping answers do not belong here."""
