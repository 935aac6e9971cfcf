"""Running text: short stories about two people, a thing and a place, from a grammar with a memory.

Nothing to check: the family feeds training and shows decoding of free text.
"""

from focus_bench.workloads.tasks import lexicon
from focus_bench.workloads.tasks.draws import Draws
from focus_bench.workloads.tasks.phrases import Phrases, sentence
from focus_bench.workloads.tasks.task import Task

FAMILY = "grammar"

_THINGS = lexicon.words(
    "kite lamp key map drum boat hat ring coin letter book rope bell basket flute ball"
)
_PLACES = lexicon.words(
    "river forest market garden harbor bridge tower school island mill station park"
)
_ANIMALS = lexicon.words("dog cat fox goat horse owl duck rabbit mouse bear")
_KINDS = lexicon.words("old small red green blue golden wooden heavy strange little")

_PHRASES = Phrases("""
ASK: tell a story about {name}, {a_thing} and the {place}.
 | tell me a story about {name} and {friend} at the {place} with {a_thing}.
 | write a short story with {name}, {friend} and {a_thing}. It happens at the {place}.
 | write a story about {a_thing} that {name} finds near the {place}.
 | I want to hear about {name}, {friend}, {a_thing} and {an_animal}.
 | make up a story with {name}, {an_animal} and the {place}.
 | go on with this story: [WHEN] {name} [WALKED] to the {place} and saw {a_thing} with {friend}.
 | go on with this story: [WHEN] {name} and {friend} [WALKED] to the {place} with {an_animal}.
WHEN: one morning | one day | on Monday | on Sunday | last summer | on a [SUNNY] day
 | in the evening
SUNNY: sunny | cold | windy | rainy | quiet | warm
WALKED: walked | went | ran | came | rode
OPEN: [WHEN] {name} [WALKED] to the {place} | [WHEN], {name} was [ALONE] near the {place}
 | it was a [SUNNY] day and {name} [WALKED] to the {place} | once {name} lived near the {place}
 | {name} loved the {place} and [WALKED] there every day
 | [WHEN] {name} woke up early and [WALKED] to the {place}
ALONE: alone | sitting | playing | waiting | resting
MOOD: the air was [SUNNY] and the birds [SANG] | the sky was [BLUE] over the {place}
 | the {place} was [QUIET] that day | {he} was [HAPPY] and [SANG] a song | nobody else was there
SANG: sang | played | danced
BLUE: blue | gray | clear | dark
QUIET: quiet | busy | empty | full of people
HAPPY: happy | tired | sad | hungry | curious
FIND: there {he} [SAW] {a_kind_thing} [UNDER] | [SOON] {he} [SAW] {a_kind_thing} [UNDER]
 | [UNDER] lay {a_kind_thing} | {he} looked down and [SAW] {a_kind_thing}
SAW: found | saw | discovered | noticed
SOON: soon | suddenly | after a while | then
UNDER: under a tree | behind a stone | in the grass | near the water | on the path
 | next to a wall
WONDER: "[WHOSE]" {he} [ASKED] | {he} [ASKED], "[WHOSE]"
 | {he} took the {thing} and looked at it for a long time
 | the {thing} was [NICE] and {he} wanted to keep it | {he} had never seen such {a_kind_thing}
WHOSE: Whose {thing} is this? | Who lost this {thing}? | Where does this {thing} come from?
ASKED: asked | said | thought | wondered
NICE: nice | very old | beautiful | light | cold | warm
MEET: [SOON] {friend} came [ALONG] | [SOON] {name} met {friend} near the {place}
 | {friend}, a [YOUNG] {job}, came [ALONG]
ALONG: along the path | over the bridge | down the road | from the other side
YOUNG: young | kind | friendly | tall
SAY: "[IT_IS]," {friend} [SAID] | {friend} [SAID], "[IT_IS]."
 | {friend} smiled and [SAID], "[IT_IS]."
SAID: said | answered | called | told {him}
IT_IS: That is my {thing} | I lost this {thing} last week | This {thing} belongs to {an_animal}
 | I know this {thing} | That {thing} is from the {place}
BEAST: [SOON] {an_animal} [JUMPED] out and took the {thing}
 | {an_animal} [JUMPED] over the wall and ran off with the {thing}
 | an animal made a noise, and it was {an_animal} | {an_animal} sat there and watched them
JUMPED: jumped | came | ran
CHASE: {name} and {friend} ran after the {animal}
 | they followed the {animal} to the [CORNER] of the {place}
 | the {animal} was fast, but {friend} was faster | the {animal} hid the {thing} [UNDER]
CORNER: end | corner | middle | other side
SOLVE: at last {he} got the {thing} back
 | {friend} gave the {animal} some [FOOD] and it left the {thing} there
 | {name} called the {animal}, and it came back with the {thing}
 | together they [GOT] the {thing} again
 | the {animal} got tired, and so they got the {thing} back
GOT: got | found | won
FOOD: bread | fruit | fish | cheese | cake
GIVE: {name} gave the {thing} to {friend} | {name} kept the {thing} and gave {friend} a [GIFT]
 | {friend} let {name} keep the {thing} | they put the {thing} back where it was
GIFT: flower | cookie | song | shell | hug
THANKS: "Thank you," {friend} said | {friend} was [GLAD] and [SANG]
 | they laughed and [SANG] together
GLAD: glad | happy | thankful | full of joy
CLOSE: from that day on they were friends | in the evening they [WALKED] home
 | {name} never forgot the {kind} {thing} | that was a good day at the {place}
 | then they [WALKED] home and slept well
END: the end | and that is the story | that is all | ~ | ~ | ~
""")

# Which sentences may be left out; the rest tell the story in this order.
_PLOT: tuple[tuple[str, float], ...] = (
    ("OPEN", 1.0),
    ("MOOD", 0.5),
    ("FIND", 1.0),
    ("WONDER", 0.7),
    ("MEET", 1.0),
    ("SAY", 0.7),
    ("BEAST", 0.8),
    ("CHASE", 0.6),
    ("SOLVE", 0.6),
    ("GIVE", 0.8),
    ("THANKS", 0.5),
    ("CLOSE", 1.0),
    ("END", 1.0),
)
_NEEDS_THE_BEAST = ("CHASE", "SOLVE")


def _slots(draws: Draws) -> dict[str, str]:
    ours, theirs = (lexicon.WOMEN, lexicon.MEN)
    if draws.chance(0.5):
        ours, theirs = theirs, ours
    person, friend = draws.pick(ours), draws.pick(theirs)
    thing, kind, animal = draws.pick(_THINGS), draws.pick(_KINDS), draws.pick(_ANIMALS)
    return {
        "name": person.name,
        "he": person.he,
        "him": person.him,
        "friend": friend.name,
        "job": draws.pick(lexicon.TOPICS["work"]),
        "thing": thing,
        "kind": kind,
        "animal": animal,
        "place": draws.pick(_PLACES),
        "a_thing": lexicon.with_article(thing),
        "a_kind_thing": lexicon.with_article(f"{kind} {thing}"),
        "an_animal": lexicon.with_article(animal),
    }


def draw(draws: Draws) -> Task:
    """A request for a story, and a story."""
    slots = _slots(draws)
    prompt = sentence(_PHRASES.expand("ASK", draws, slots))
    told: list[str] = []
    asked_for = f"{slots['animal']} " in prompt or f"{slots['animal']}." in prompt
    beast = False
    for rule, probability in _PLOT:
        must = rule == "BEAST" and asked_for
        if not (draws.chance(probability) or must) or (rule in _NEEDS_THE_BEAST and not beast):
            continue
        beast = beast or rule == "BEAST"
        text = _PHRASES.expand(rule, draws, slots)
        if text:
            told.append(sentence(text))
    return Task(family=FAMILY, prompt=prompt, reply=" ".join(told), answer="")


def key(task: Task) -> str:
    """What decides the split: the request."""
    return task.prompt


def check(task: Task, output: str) -> bool:
    """Never true: a story has no right answer."""
    return False
