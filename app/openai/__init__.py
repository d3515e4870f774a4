"""What is asked and what is answered, and OpenAI's bodies of both: for a batch's lines, and for a
server. Whole lines of a batch belong to `app.batch`; nothing here imports it."""
