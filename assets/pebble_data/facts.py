"""Small facts: opposites, colours, animal sounds, months, chemical symbols, shapes and the like."""

from __future__ import annotations

import random
import re

from pebble_data.base import Sample, Split, phrased, turn


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    entries = (entry.split(":") for entry in text.split())
    return tuple((left.replace("_", " "), right.replace("_", " ")) for left, right in entries)


_OPPOSITES = _pairs(
    "hot:cold big:small up:down left:right day:night black:white open:closed fast:slow happy:sad old:young"
    " full:empty wet:dry light:dark high:low long:short near:far hard:soft early:late rich:poor first:last"
    " loud:quiet clean:dirty strong:weak thick:thin wide:narrow heavy:light in:out on:off true:false"
    " yes:no good:bad push:pull win:lose buy:sell start:stop always:never inside:outside sweet:sour"
)
_COLORS = _pairs(
    "the_sky:blue grass:green snow:white coal:black a_banana:yellow a_tomato:red a_carrot:orange blood:red"
    " milk:white the_sun:yellow an_elephant:gray a_flamingo:pink chocolate:brown a_lemon:yellow"
    " a_strawberry:red a_leaf:green salt:white a_frog:green a_raven:black an_eggplant:purple"
)
_SOUNDS = _pairs(
    "dog:woof cat:meow cow:moo duck:quack sheep:baa pig:oink horse:neigh rooster:cock-a-doodle-doo"
    " lion:roar frog:ribbit bee:buzz owl:hoot snake:hiss mouse:squeak wolf:howl crow:caw turkey:gobble"
    " donkey:hee-haw goat:maa bird:tweet"
)
_MONTH_DAYS = _pairs(
    "January:31 February:28 March:31 April:30 May:31 June:30 July:31 August:31 September:30 October:31"
    " November:30 December:31"
)
_SYMBOLS = _pairs(
    "hydrogen:H helium:He lithium:Li carbon:C nitrogen:N oxygen:O fluorine:F neon:Ne sodium:Na magnesium:Mg"
    " aluminium:Al silicon:Si phosphorus:P sulfur:S chlorine:Cl argon:Ar potassium:K calcium:Ca iron:Fe"
    " nickel:Ni copper:Cu zinc:Zn silver:Ag tin:Sn iodine:I gold:Au mercury:Hg lead:Pb uranium:U"
)
_SIDES = _pairs("triangle:3 square:4 rectangle:4 pentagon:5 hexagon:6 heptagon:7 octagon:8")
_LEGS = _pairs(
    "dog:4 cat:4 bird:2 spider:8 ant:6 bee:6 horse:4 chicken:2 snake:0 crab:10 human:2 fish:0"
)
_YOUNG = _pairs(
    "dog:puppy cat:kitten cow:calf sheep:lamb horse:foal pig:piglet duck:duckling goose:gosling bear:cub"
    " goat:kid kangaroo:joey frog:tadpole owl:owlet swan:cygnet"
)
_UNITS = _pairs(
    "minutes_in_an_hour:60 seconds_in_a_minute:60 hours_in_a_day:24 days_in_a_week:7 months_in_a_year:12"
    " days_in_a_year:365 weeks_in_a_year:52 years_in_a_century:100 eggs_in_a_dozen:12 cents_in_a_dollar:100"
    " grams_in_a_kilogram:1000 meters_in_a_kilometer:1000 letters_in_the_alphabet:26 planets_around_the_sun:8"
    " continents_on_the_earth:7 colors_in_a_rainbow:7 wheels_on_a_bicycle:2 strings_on_a_violin:4"
)

# Each kind: its pairs, its phrasings (the first always trains), and the one way to answer.
_KINDS: tuple[tuple[tuple[tuple[str, str], ...], tuple[str, ...], str], ...] = (
    (
        _OPPOSITES,
        (
            "What is the opposite of {}?",
            "Name the opposite of {}.",
            "opposite of {}",
            "Tell me the opposite of {}.",
        ),
        "The opposite of {} is {}.",
    ),
    (
        _COLORS,
        ("What color is {}?", "Tell me the color of {}.", "Which color is {}?"),
        "The color of {} is {}.",
    ),
    (
        _SOUNDS,
        ("What sound does a {} make?", "What does a {} say?", "Which sound does a {} make?"),
        "A {} says {}.",
    ),
    (
        _MONTH_DAYS,
        (
            "How many days are in {}?",
            "How many days does {} have?",
            "Tell me how many days {} has.",
        ),
        "{} has {} days.",
    ),
    (
        _SYMBOLS,
        (
            "What is the chemical symbol for {}?",
            "What is the symbol of {}?",
            "Give me the chemical symbol of {}.",
        ),
        "The symbol for {} is {}.",
    ),
    (
        _SIDES,
        (
            "How many sides does a {} have?",
            "How many sides are in a {}?",
            "Tell me how many sides a {} has.",
        ),
        "A {} has {} sides.",
    ),
    (
        _LEGS,
        (
            "How many legs does a {} have?",
            "How many legs are on a {}?",
            "Tell me how many legs a {} has.",
        ),
        "A {} has {} legs.",
    ),
    (
        _YOUNG,
        ("What is a young {} called?", "What do you call a baby {}?", "Name a young {}."),
        "A young {} is called a {}.",
    ),
    (
        _UNITS,
        ("How many {} are there?", "Tell me the number of {}.", "What is the number of {}?"),
        "The number of {} is {}.",
    ),
)


def _articles(text: str) -> str:
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


def fact(rng: random.Random, split: Split) -> Sample:
    flat = [(kind, pair) for kind in _KINDS for pair in kind[0]]
    while True:
        (_, phrasings, reply), (subject, value) = rng.choice(flat)
        asked = phrased(rng, split, f"{reply}|{subject}", phrasings)
        if asked:
            return turn(
                "fact", _articles(asked.format(subject)), _articles(reply.format(subject, value))
            )
