"""Words and names, real and invented, and which of them are held out."""

from __future__ import annotations

import random

from pebble_data.base import Split, split_of

WORDS = """
apple arm army art autumn baby back bag ball band bank barn basket bath beach bean bear bed bee bell belt
bench bird blanket boat body bone book boot bottle bowl box boy brain branch bread brick bridge brother
brush bucket bug bus butter button cabin cake camel camera camp candle candy cap car card carpet cart
castle cat cave chain chair chalk cheese cherry chest chick child church circle city class clay clock
cloth cloud coat coffee coin color comb cook corn cotton couch cow crab cream crow crown cup curtain
dance desert desk dinner dish doctor dog doll door dragon dream dress drum duck dust eagle ear earth egg
elbow engine eye face family farm father feast feather fence field finger fire fish flag flame floor
flower flute foot forest fork fox friend frog fruit garden gate ghost giant gift girl glass glove goat
gold goose grape grass guitar hair hammer hand harbor hat hawk head heart hen hill honey hook horn horse
hotel house ice island jacket jar jelly jewel judge juice jungle kettle key king kitchen kite kitten knee
knife ladder lady lake lamb lamp land leaf leg lemon letter light lion lip lizard lock log lunch machine
magnet mail map marble market mask meadow meal milk mind mirror money monkey moon morning mother motor
mountain mouse mouth mud music nail neck needle nest net night nose number nurse nut oak ocean office oil
onion orange oven owl ox page pail paint palace pan paper park party path peach pear pen pencil penny
pepper person piano picnic picture pie pig pigeon pillow pilot pin pipe planet plant plate pocket poem
pond pony pool porch pot potato prince prize pupil purse puzzle quartz queen quilt rabbit radio rain ranch
raven ribbon rice ring river road robin robot rocket roof room root rope rose sail salad salt sand scarf
school seed shadow shark sheep shelf shell ship shirt shoe shop silk silver singer sister skate skirt sky
sled smoke snail snake snow soap sock soup spade spider spoon spring square squash stable stage star steam
stem stone store storm story stove straw street string sugar summer sun swan table tail tailor tea teacher
team tent thread throne thumb ticket tiger toad toast tomato tooth tower town toy train tree trick truck
trumpet tub tulip turkey turtle uncle valley vase vest village violin voice wagon wall walnut watch water
wave wheel whistle wind window wing winter wolf woman wood wool world worm yard zebra
""".split()  # fmt: skip

NAMES = """
Ada Adam Alice Amir Ana Anna Anton Ben Bella Boris Carla Carlos Clara Dan Daniel Dara David Diana Dora
Elena Eli Ella Emil Emma Eric Eva Felix Fiona Frank George Grace Hana Hannah Hugo Ida Igor Ines Ivan Jack
Jade James Jan Jane Jonas Julia Karim Kate Kira Lara Lea Leo Leon Liam Lily Lina Lisa Louis Lucas Lucy
Luna Maja Marco Maria Mark Marta Max Mia Milan Mina Mira Nadia Nina Noah Nora Olga Oliver Omar Oscar Otto
Paul Pedro Petra Peter Rafa Rita Robin Rosa Ruth Sam Sara Simon Sofia Sonia Stefan Tara Theo Tina Tom Uma
Vera Victor Viola Walter Yara Yusuf Zara Zoe
""".split()  # fmt: skip

_ONSETS = "b c d f g h j k l m n p r s t v w z bl br ch cl cr dr fl fr gr pl pr qu sh sl sp st th tr".split()
_VOWELS = "a e i o u a e i o u ai ea ee oo ou".split()
_CODAS = ["", "", "", *"b d g k l m n p r s t x y ck ld ll mp nd ng nt rk rn st".split()]


def invented(rng: random.Random, shortest: int = 3, longest: int = 7) -> str:
    """A pronounceable word that need not exist, so that spelling cannot be learnt by heart."""
    while True:
        syllables = rng.randint(1, 3)
        parts = (
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables)
        )
        word = "".join(parts)
        if rng.random() < 0.15:
            word = word[1:]
        if shortest <= len(word) <= longest:
            return word


def word_split(word: str) -> Split:
    return split_of(f"word|{word.lower()}")


def name_split(name: str) -> Split:
    return split_of(f"name|{name}", 0.12, 0.08)


def pick_word(rng: random.Random, split: Split, longest: int = 7, invent: float = 0.6) -> str:
    while True:
        word = invented(rng, longest=longest) if rng.random() < invent else rng.choice(WORDS)
        if len(word) <= longest and word_split(word) is split:
            return word


def pick_name(rng: random.Random, split: Split) -> str:
    """Training mixes invented names in, so that copying a name never seen works; grading uses real ones."""
    while True:
        invent = split is Split.TRAIN and rng.random() < 0.4
        name = invented(rng).capitalize() if invent else rng.choice(NAMES)
        if name_split(name) is split:
            return name
