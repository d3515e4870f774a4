"""The text Pebble learns from: small generators, one family of tasks per module.

Every generator takes a random source and a `Split` and returns a `Sample` whose last message is the
wanted answer. The split of an item is a hash of the item itself, so a held-out pair, word or phrasing
can never slip into the training text, whatever the seed.
"""
