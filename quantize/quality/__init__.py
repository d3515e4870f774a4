"""Is a built file still the model that it was made from? Tokens, answers, speed."""
