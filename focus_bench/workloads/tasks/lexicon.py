"""The words that several families share: people, things, animals, places and topics.

The whole vocabulary is small on purpose: a model of 10 M parameters can know all of it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """A name with its pronouns."""

    name: str
    he: str
    him: str
    his: str


def words(text: str) -> tuple[str, ...]:
    """The words of a list that is written as one line."""
    return tuple(text.split())


def _people(names: str, he: str, him: str, his: str) -> tuple[Person, ...]:
    return tuple(Person(name=name, he=he, him=him, his=his) for name in names.split())


WOMEN = _people(
    "Mia Ana Lily Nora Emma Zoe Ruth Ella Ivy Rosa Lena Kate Clara Jane", "she", "her", "her"
)
MEN = _people("Tom Ben Sam Leo Max Finn Omar Paul Luke Jack Hugo Adam Karl Dan", "he", "him", "his")
PEOPLE = WOMEN + MEN

# Things that are counted, in the plural.
FOOD = words("apples pears plums cookies nuts carrots eggs muffins cherries lemons rolls")
TREASURES = words(
    "marbles stickers shells stones cards buttons beads stamps badges ribbons feathers"
)
SUPPLIES = words("pens books pencils crayons brushes candles cups balloons postcards")

TOPICS: dict[str, tuple[str, ...]] = {
    "animals": words(
        "cat dog fox owl bear wolf horse mouse duck goat frog lion sheep rabbit tiger snake"
    ),
    "colors": words("red blue green white black yellow brown pink gray orange purple gold"),
    "fruit": words(
        "apple pear plum cherry lemon grape peach melon banana mango berry fig lime date"
    ),
    "the sea": words(
        "wave fish sand ship shell whale harbor sail island storm salt coast crab tide"
    ),
    "the forest": words(
        "tree leaf moss path river root branch bird nest stone hill pine shade deer"
    ),
    "the house": words(
        "door table chair lamp window roof kitchen bed clock stairs wall garden cup spoon"
    ),
    "music": words(
        "song drum flute piano violin voice choir dance tune bell guitar rhythm note horn"
    ),
    "the city": words(
        "street bridge market tower bus train park school shop museum station corner"
    ),
    "the weather": words("rain snow wind sun cloud fog ice thunder heat frost rainbow"),
    "work": words(
        "baker farmer teacher doctor sailor painter driver singer writer cook nurse pilot"
    ),
}
TOPIC_NAMES = tuple(TOPICS)


def with_article(noun: str) -> str:
    """The noun behind "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
