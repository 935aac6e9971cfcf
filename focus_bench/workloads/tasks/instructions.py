"""Instructions whose fulfilment can be verified: lengths, words to use, lists, list operations.

How a constraint is verified is constraints.py's matter; here they are chosen, worded and met.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from focus_bench.workloads.tasks.constraints import satisfies
from focus_bench.workloads.tasks.draws import Draws
from focus_bench.workloads.tasks.lexicon import TOPIC_NAMES, TOPICS, with_article, words
from focus_bench.workloads.tasks.phrases import Phrases, sentence
from focus_bench.workloads.tasks.task import Task

FAMILY = "instructions"

_COUNTS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
_TIMES = {1: "once", 2: "twice", 3: "three times"}
# Nouns that a sentence can be about, and what they are described with.
_SUBJECTS = words(
    "cat dog fox owl bear wolf horse mouse duck goat frog lion sheep rabbit baker farmer teacher"
    " doctor sailor painter driver singer writer cook nurse pilot"
)

_PHRASES = Phrases("""
LINES: write {k} lines with exactly {n} words about {topic} in each
 | give me {k} lines about {topic}, {n} words in each line
 | name things about {topic} in {k} lines of exactly {n} words
 | in {k} lines of {n} words each, write words about {topic}
BULLETS: write a list of exactly {n} items about {topic}
 | make a list with {n} items about {topic} | list {n} things about {topic}
 | give me a list of {n} words about {topic}
DASH: start each item with a dash | use a dash for each item | put a dash before each item
STAR: start each item with a star | use a star for each item | put a star before each item
NUMBERS: number the items | put a number before each item | use numbers for the items
ABOUT: write exactly {n} sentences about the {word}
 | tell me about the {word} in exactly {n} sentences | describe the {word} in {n} sentences
 | in {n} sentences, say something about the {word}
LOWER: use only small letters | write in small letters only | do not use capital letters
UPPER: use only capital letters | write everything in capital letters
 | use capital letters everywhere
INCLUDE: use the word {use} | the word {use} must be there | do not forget the word {use}
WITHOUT: do not use the word {use} | leave out the word {use} | the word {use} must not be there
DIFFERENT: all words must be different | use no word more than once | do not repeat a word
FIRST: begin with the word {use} | the first word must be {use} | start with {use}
LAST: end with the word {use} | the last word must be {use} | finish with {use}
MENTION: use the word {use} exactly {times} | write {use} exactly {times}
 | the word {use} must be there {times}
OPENING: begin with "{use}" | start your answer with "{use}" | the first words must be "{use}"
CLOSING: end with "{use}" | finish your answer with "{use}" | the last words must be "{use}"
LIST_INTRO: here is the list: | here are {n} items: | sure, here you go: | a list about {topic}:
 | {n} words about {topic}: | of course: | here is what you asked for: | this is my list:
REVERSE: turn this list around: {items} | reverse the list: {items}
 | write this list in reverse order: {items} | give these words from last to first: {items}
REMOVE: remove {use} from this list: {items} | take {use} out of the list: {items}
 | drop {use} from these words: {items}
REPLACE: replace {use} with {by} in this list: {items} | put {by} in the place of {use}: {items}
 | change {use} to {by} in these words: {items}
KEEP: keep only the first {n} words: {items} | give me the first {n} words of this list: {items}
 | take the first {n} words from: {items}
KEEP_LAST: keep only the last {n} words: {items}
 | give me the last {n} words of this list: {items} | take the last {n} words from: {items}
DOUBLE: write each word twice: {items} | say every word of this list two times: {items}
 | repeat each of these words once: {items}
SORT: sort these numbers from small to large: {items}
 | put the numbers in order, smallest first: {items}
 | order these numbers from low to high: {items}
CAPITALS: write this list in capital letters: {items}
 | turn these words into capital letters: {items}
FORM: write the answer behind "Result:" | your last line must start with "Result:"
 | give the answer in a line that starts with "Result:"
LOOK: the list has {count} words | there are {count} words in the list | I see {count} words
 | we start with {count} words
NEXT: then comes {use} | next is {use} | after it I write {use} | now {use} | {use} follows
 | we go on with {use}
START: the first one is {use} | we begin with {use} | it starts with {use} | I take {use} first
 | first comes {use}
STOP: the last one is {use} | at the end comes {use} | finally {use} | it ends with {use}
 | last we write {use}
GOES: {use} is left out | we do not need {use} | {use} goes away | I skip {use} | {use} must go
SWAPS: {use} turns into {by} | instead of {use} we write {by} | {by} takes the place of {use}
 | {use} becomes {by}
NAMED: The {word} is [SIZE]. | The {word} looks [SIZE] and [MOOD].
 | One {word} can be very [MOOD]. | The {word} lives near the [PLACE].
 | You can see the {word} at the [PLACE]. | Every day the {word} goes to the [PLACE].
 | The {word} likes to [DO] every day. | In the morning the {word} likes to [DO].
 | At night the {word} will [DO]. | People say that the {word} is [MOOD].
 | My friend met {a_word} at the [PLACE]. | The {word} has a [SIZE] [THING].
 | Nobody can [DO] like the {word}. | When it rains, the {word} stays at the [PLACE].
PLAIN: That is [GOOD] to see. | Many people like this. | It is [CALM] near the [PLACE].
 | This is [GOOD] to know. | The [PLACE] is [CALM] too. | Life is [GOOD] there.
 | We like to [DO] as well. | It is fun to watch.
SIZE: small | big | young | strong | tall | nice | funny
MOOD: quiet | happy | kind | busy | calm | friendly
GOOD: good | nice | fun | great
CALM: calm | quiet | nice | busy | old
PLACE: river | garden | bridge | market | school | tower | park | forest | harbor | station
DO: sing | run | dance | sleep | play | walk | jump | work | read | rest
THING: hat | house | friend | garden | voice | bag | coat | bed
""")
_OPENINGS = ("Listen:", "Well,", "Here we go:", "My friend,", "Let me tell you:", "In short,")
_CLOSINGS = ("That is all.", "The end.", "Thank you.", "Good night.", "This is true.", "I am done.")


@dataclass(kw_only=True, slots=True)
class _Order:
    """What is asked and how it will be checked."""

    draws: Draws
    slots: dict[str, str] = field(default_factory=dict)
    wishes: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)

    def phrase(self, rule: str, **slots: int | str) -> str:
        """Text of a rule; `slots` stay for the rules that follow."""
        self.slots.update({name: str(value) for name, value in slots.items()})
        return _PHRASES.expand(rule, self.draws, self.slots)

    def wish(self, rule: str, constraint: str, **slots: int | str) -> None:
        """Ask for something and note how it is checked ("" where another check covers it)."""
        self.wishes.append(sentence(self.phrase(rule, **slots)))
        if constraint:
            self.constraints.append(constraint)

    def number(self, value: int) -> str:
        """A small number in digits or in letters."""
        return _COUNTS[value] if self.draws.chance(0.5) else str(value)

    def task(self, reply: str) -> Task:
        """The task with a reply that meets all constraints."""
        first, *others = self.wishes
        prompt = " ".join([first, *self.draws.distinct(others, len(others))])
        return Task(
            family=FAMILY, prompt=prompt, reply=reply, answer="\n".join(sorted(self.constraints))
        )


def _lines(draws: Draws) -> Task:
    """So many lines of so many words of a topic."""
    order, topic = _Order(draws=draws), draws.pick(TOPIC_NAMES)
    lines, length = draws.integer(2, 4), draws.integer(3, 6)
    *pool, unused = draws.distinct(TOPICS[topic], len(TOPICS[topic]))
    order.wish(
        "LINES", f"lines {lines} {length}", k=_COUNTS[lines], n=order.number(length), topic=topic
    )
    order.constraints.append(f"topic {topic}")
    if lines * length <= len(pool) and draws.chance(0.6):
        order.wish("DIFFERENT", "different")
        chosen = pool[: lines * length]
    else:
        chosen = [word for _ in range(lines) for word in draws.distinct(pool, length)]
    kind = draws.uniform()
    if kind < 0.3:
        order.wish("FIRST", f"first {chosen[0]}", use=chosen[0])
    elif kind < 0.6:
        order.wish("LAST", f"last {chosen[-1]}", use=chosen[-1])
    elif kind < 0.8:
        order.wish("INCLUDE", f"with {chosen[1]}", use=chosen[1])
    if draws.chance(0.4):
        order.wish("WITHOUT", f"without {unused}", use=unused)
    case = draws.uniform()
    comma = "," if draws.chance(0.5) else ""
    rows = (chosen[i : i + length] for i in range(0, len(chosen), length))
    text = "\n".join(f"{comma} ".join(row) for row in rows)
    if case < 0.25:
        order.wish("UPPER", "case upper")
        return order.task(text.upper())
    if case < 0.5:
        order.wish("LOWER", "case lower")
    return order.task(text)


def _bullets(draws: Draws) -> Task:
    """A list of so many items of a topic."""
    order, topic = _Order(draws=draws), draws.pick(TOPIC_NAMES)
    count = draws.integer(3, 8)
    chosen = draws.distinct(TOPICS[topic], count)
    marker, rule = draws.pick((("-", "DASH"), ("*", "STAR"), ("1.", "NUMBERS")))
    order.wish("BULLETS", f"bullets {marker} {count}", n=order.number(count), topic=topic)
    order.constraints.append(f"topic {topic}")
    order.wish(rule, "")
    if draws.chance(0.5):
        order.wish("DIFFERENT", "different")
    if draws.chance(0.5):
        used = draws.pick(chosen)
        order.wish("INCLUDE", f"with {used}", use=used)
    if draws.chance(0.4):
        other = draws.pick([word for word in TOPICS[topic] if word not in chosen])
        order.wish("WITHOUT", f"without {other}", use=other)
    marks = (f"{i}." if marker == "1." else marker for i in range(1, count + 1))
    lines = [f"{mark} {word}" for mark, word in zip(marks, chosen, strict=False)]
    intro = sentence(order.phrase("LIST_INTRO", n=order.number(count)))
    return order.task("\n".join([intro, *lines]))


def _about(draws: Draws) -> Task:
    """So many sentences about somebody, who is named so many times."""
    order, word = _Order(draws=draws), draws.pick(_SUBJECTS)
    count = draws.integer(4, 7)
    kind = draws.uniform()
    opening = draws.pick(_OPENINGS) if kind < 0.35 else ""
    closing = draws.pick(_CLOSINGS) if 0.35 <= kind < 0.7 else ""
    free = count - (1 if closing else 0)
    named = draws.integer(1, min(free, 3))
    order.wish(
        "ABOUT", f"sentences {count}", n=order.number(count), word=word, a_word=with_article(word)
    )
    order.wish("MENTION", f"count {word} {named}", use=word, times=_TIMES[named])
    if opening:
        order.wish("OPENING", f"first {opening.strip(',:').lower()}", use=opening)
    if closing:
        order.wish("CLOSING", f"last {closing.strip('.').lower()}", use=closing)
    places = draws.distinct(range(free), named)
    sentences = [order.phrase("NAMED" if i in places else "PLAIN") for i in range(free)]
    if opening.endswith(","):
        sentences[0] = sentences[0][0].lower() + sentences[0][1:]
    return order.task(" ".join(filter(None, (opening, *sentences, closing))))


def _edit(draws: Draws) -> Task:
    """A list and one thing to do with it; the reply goes through it item by item."""
    order = _Order(draws=draws)
    kind = draws.pick(_EDITS)
    count = draws.integer(3, 5 if kind in ("DOUBLE", "SORT") else 6)
    if kind == "SORT":
        items = [str(number) for number in draws.distinct(range(10, 100), count)]
    else:
        chosen = TOPICS[draws.pick(TOPIC_NAMES)] + TOPICS[draws.pick(TOPIC_NAMES)]
        items = draws.distinct(tuple(dict.fromkeys(chosen)), count + 1)
    by = items.pop() if kind != "SORT" else ""
    use, kept = draws.pick(items), draws.integer(2, count - 1)
    order.slots.update(use=use, by=by, items=", ".join(items), n=order.number(kept))
    order.slots["count"] = order.number(count)
    result = {
        "REVERSE": items[::-1],
        "REMOVE": [item for item in items if item != use],
        "REPLACE": [by if item == use else item for item in items],
        "KEEP": items[:kept],
        "KEEP_LAST": items[-kept:],
        "DOUBLE": [item for item in items for _ in range(2)],
        "SORT": sorted(items),  # two digits each, so in order as text too
        "CAPITALS": [item.upper() for item in items],
    }[kind]
    order.wish(kind, f"result {' '.join(result)}")
    order.wish("FORM", "")
    lines = []
    if kind != "SORT" and draws.chance(0.5):
        lines.append(order.phrase("LOOK"))
    if kind == "REMOVE":
        lines.append(order.phrase("GOES"))
    elif kind == "REPLACE":
        lines.append(order.phrase("SWAPS"))
    for place, item in enumerate(result[::2] if kind == "DOUBLE" else result):
        last = place + 1 == len(result)
        rule = "START" if place == 0 else "STOP" if last else "NEXT"
        lines.append(order.phrase(rule, use=f"{item} {item}" if kind == "DOUBLE" else item))
    return order.task("\n".join([*map(sentence, lines), f"Result: {', '.join(result)}"]))


_EDITS = ("REVERSE", "REMOVE", "REPLACE", "KEEP", "KEEP_LAST", "DOUBLE", "SORT", "CAPITALS")
_KINDS: tuple[Callable[[Draws], Task], ...] = (
    _lines,
    _bullets,
    _about,
    _about,
    _edit,
    _edit,
    _edit,
)


def draw(draws: Draws) -> Task:
    """An instruction, a reply that follows it, and its constraints."""
    return draws.pick(_KINDS)(draws)


def key(task: Task) -> str:
    """What decides the split: all that is asked for, whatever the wording."""
    return task.answer


def check(task: Task, output: str) -> bool:
    """Whether `output` meets every constraint of the task."""
    return satisfies(output, task.answer)
