"""Tasks and answers, and their bodies in OpenAI's form, for the server and for a batch's lines.
Whole lines of a batch belong to `app.batch`; nothing here imports it.
"""
