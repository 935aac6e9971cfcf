"""Word problems: two to four operations on small numbers, told as a short story with a question.

The reply writes every step out and ends in "The answer is 42.". Wording is word_problem_phrases'.
"""

import re
from dataclasses import dataclass, field

from focus_bench.workloads.tasks import lexicon
from focus_bench.workloads.tasks.draws import Draws
from focus_bench.workloads.tasks.phrases import sentence
from focus_bench.workloads.tasks.task import Task
from focus_bench.workloads.tasks.word_problem_phrases import PHRASES

FAMILY = "problems"

_MAX_VALUE = 200  # a sum above it is not asked for
_LOW_VALUE = 20  # from here down a problem adds rather than takes away
_ANSWER = re.compile(r"The answer is (\d+)\.")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scene:
    """A setting in which one number goes up and down; `name` begins the names of its rules."""

    name: str
    gains: tuple[str, ...]
    losses: tuple[str, ...]


_HOLD = _Scene(
    name="HOLD",
    gains=("HOLD_FIND", "HOLD_BUY", "HOLD_GIFT", "HOLD_WIN"),
    losses=("HOLD_GIVE", "HOLD_LOSE", "HOLD_SELL"),
)
_HOLD_FOOD = _Scene(name="HOLD", gains=_HOLD.gains, losses=(*_HOLD.losses, "HOLD_EAT"))
_BUS = _Scene(name="BUS", gains=("BUS_ON",), losses=("BUS_OFF",))
_SHOP = _Scene(name="SHOP", gains=("SHOP_ADD",), losses=("SHOP_SALE", "SHOP_BREAK"))

_VEHICLES = ("bus", "train", "tram")
_PLACES = ("shop", "store", "market", "kiosk")


@dataclass(kw_only=True, slots=True)
class _Problem:
    """A problem and its solution as far as they are told."""

    draws: Draws
    slots: dict[str, str]
    operations: int
    sentences: list[str] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)  # sentence, state behind it
    opening: str = ""
    value: int = 0

    def call_person(self) -> None:
        """Choose between name and pronoun for the next sentence."""
        self.slots["he"] = self.slots[self.draws.pick(("name", "pronoun", "pronoun"))]

    def phrase(self, rule: str, **slots: int | str) -> str:
        """Text of a rule; `slots` stay for the rules that follow."""
        self.slots.update({name: str(value) for name, value in slots.items()})
        return PHRASES.expand(rule, self.draws, self.slots)

    def tell(self, rule: str, **slots: int | str) -> None:
        """Add a sentence to the problem."""
        self.call_person()
        text = self.phrase(rule, **slots)
        self.sentences.append(sentence(text))

    def tell_next(self, rule: str, **slots: int | str) -> None:
        """Add a sentence that may say when it happens."""
        self.call_person()
        text = self.phrase(rule, **slots)
        when = self.phrase("WHEN")
        if when and not text.startswith(("then ", "at ")):
            text = f"{when} {text}"
        self.sentences.append(sentence(text))

    def work(self, operation: str, left: int, right: int, *, why: str, state: str) -> int:
        """Add one written-out step; returns its result."""
        result = {
            "ADD": left + right,
            "SUB": left - right,
            "MUL": left * right,
            "HALF": left // 2,
        }[operation]
        self.call_person()
        done = len(self.steps)
        order = "FIRST" if done == 0 else "LAST" if done + 1 == self.operations else "NEXT"
        self.slots.update(left=str(left), right=str(right), result=str(result), c=str(result))
        self.slots["eq"] = self.phrase(f"EQ_{operation}")
        step = self.phrase(
            "STEP",
            why=self.phrase(why),
            conn=self.phrase(order),
            do=self.phrase(f"DO_{operation}"),
            told=self.phrase(f"TOLD_{operation}"),
        )
        self.steps.append((sentence(step), self.phrase(state)))
        return result


def _cast(draws: Draws) -> dict[str, str]:
    """A person, a friend whom no pronoun can be mistaken for, and somebody else."""
    ours, theirs = (lexicon.WOMEN, lexicon.MEN)
    if draws.chance(0.5):
        ours, theirs = theirs, ours
    person = draws.pick(ours)
    friend, other = draws.distinct(theirs, 2)
    return {
        "name": person.name,
        "pronoun": person.he,
        "him": person.him,
        "his": person.his,
        "friend": friend.name,
        "other": other.name,
    }


def _changing(problem: _Problem, scene: _Scene) -> str:
    """One number that goes up and down. Returns the rule of the question."""
    draws, name = problem.draws, scene.name
    state = f"{name}_STATE"
    if draws.chance(0.3):
        k, m = draws.integer(2, 9), draws.integer(3, 9)
        problem.tell(f"{name}_ROWS", k=k, m=m)
        problem.value = problem.work("MUL", k, m, why=f"{name}_ROWS_WHY", state=state)
    else:
        problem.value = draws.integer(8, 80)
        problem.tell(f"{name}_START", n=problem.value)
        problem.opening = problem.phrase(f"{name}_START_WHY")
    while (left := problem.operations - len(problem.steps)) > 0:
        kind = draws.uniform()
        if left >= 2 and kind < 0.3:
            _group(problem, name)
        elif kind < 0.38 and problem.value <= 60:
            problem.tell_next(f"{name}_DOUBLE")
            problem.value = problem.work(
                "MUL", problem.value, 2, why=f"{name}_DOUBLE_WHY", state=state
            )
        elif kind < 0.46 and problem.value % 2 == 0 and problem.value >= 16:
            problem.tell_next(f"{name}_HALF")
            problem.value = problem.work(
                "HALF", problem.value, 2, why=f"{name}_HALF_WHY", state=state
            )
        else:
            grow = problem.value <= _LOW_VALUE or draws.chance(0.5)
            operation = "ADD" if grow else "SUB"
            event = draws.pick(scene.gains if grow else scene.losses)
            amount = draws.integer(2, 60 if grow else min(60, problem.value - 2))
            problem.tell_next(event, n=amount)
            problem.value = problem.work(
                operation, problem.value, amount, why=f"{event}_WHY", state=state
            )
    return f"{name}_ASK"


def _group(problem: _Problem, name: str) -> None:
    """Some groups of equal size come or go: two operations."""
    draws = problem.draws
    k, m = draws.integer(2, 6), draws.integer(2, 9)
    grow = k * m + 2 > problem.value or draws.chance(0.5)
    event = f"{name}_PACKS" if grow else f"{name}_EACH"
    problem.tell_next(event, k=k, m=m)
    group = problem.work("MUL", k, m, why=f"{event}_WHY", state="GROUP_STATE")
    problem.slots["n"] = str(group)
    problem.value = problem.work(
        "ADD" if grow else "SUB",
        problem.value,
        group,
        why=f"{event}_SUM",
        state=f"{name}_STATE",
    )


def _comparing(problem: _Problem) -> str:
    """A chain of people of whom each has more or less than the one before."""
    draws = problem.draws
    people = [person.name for person in draws.distinct(lexicon.PEOPLE, problem.operations + 1)]
    total = draws.chance(0.5)
    before = 0
    problem.value = draws.integer(8, 70)
    problem.slots["name"] = people[0]
    problem.tell("HOLD_START", n=problem.value)
    problem.opening = problem.phrase("HOLD_START_WHY")
    pairs = zip(people[1:], people[:-1], strict=True)
    for p, q in list(pairs)[: problem.operations - total]:
        before = problem.value
        kind = draws.uniform()
        if kind < 0.25 and before <= 40:
            rule, operation, amount = "TIMES", "MUL", draws.integer(2, 4 if before <= 20 else 2)
        elif before <= _LOW_VALUE or kind < 0.65:
            rule, operation, amount = "MORE", "ADD", draws.integer(2, 50)
        else:
            rule, operation, amount = "FEWER", "SUB", draws.integer(2, min(50, before - 2))
        problem.tell(rule, p=p, q=q, n=amount)
        problem.value = problem.work(
            operation, before, amount, why=f"{rule}_WHY", state="COMPARE_STATE"
        )
    if not total:
        return "COMPARE_ASK"
    problem.value = problem.work("ADD", before, problem.value, why="TOTAL_WHY", state="TOTAL_STATE")
    return "TOTAL_ASK"


def _buying(problem: _Problem) -> str:
    """One or two kinds of things are paid for, with change or without."""
    draws = problem.draws
    kinds = 1 if problem.operations == 2 else 2
    change = problem.operations != 3
    goods = draws.distinct(lexicon.SUPPLIES + lexicon.FOOD, kinds)
    prices = [draws.integer(2, 9) for _ in goods]
    counts = [draws.integer(2, 9) for _ in goods]
    for item, price in zip(goods, prices, strict=True):
        problem.tell("PRICE", items=item, n=price)
    rules = ("COUNT", "COUNT_TOO")
    for item, count, rule in zip(goods, counts, rules, strict=False):
        problem.tell(rule, items=item, k=count)
    costs = []
    for item, count, price in zip(goods, counts, prices, strict=True):
        problem.slots.update(items=item, k=str(count), n=str(price))
        costs.append(problem.work("MUL", count, price, why="COUNT_WHY", state="COST_STATE"))
    problem.value = costs[0]
    if kinds == 2:
        problem.value = problem.work("ADD", *costs, why="BOTH_WHY", state="COST_STATE")
    if not change:
        return "BOTH_ASK"
    paid = problem.value + draws.integer(1, 40)
    problem.tell("PAY", n=paid)
    problem.value = problem.work("SUB", paid, problem.value, why="PAY_WHY", state="PAY_STATE")
    return "PAY_ASK"


def _compose(draws: Draws) -> tuple[_Problem, str]:
    """A problem, told and solved, and the rule of its question."""
    slots = _cast(draws)
    food = draws.chance(0.4)
    slots["items"] = draws.pick(lexicon.FOOD if food else lexicon.TREASURES + lexicon.SUPPLIES)
    slots["bus"] = draws.pick(_VEHICLES)
    slots["shop"] = draws.pick(_PLACES)
    operations = draws.pick((2, 2, 2, 3, 3, 3, 3, 4, 4))
    problem = _Problem(draws=draws, slots=slots, operations=operations)
    kind = draws.uniform()
    if kind < 0.36:
        return problem, _changing(problem, _HOLD_FOOD if food else _HOLD)
    if kind < 0.52:
        return problem, _changing(problem, _BUS)
    if kind < 0.68:
        return problem, _changing(problem, _SHOP)
    if kind < 0.85:
        return problem, _comparing(problem)
    return problem, _buying(problem)


def draw(draws: Draws) -> Task:
    """A problem, its worked reply, and the number that is the answer."""
    problem, ask = _compose(draws)
    while problem.value > _MAX_VALUE:
        problem, ask = _compose(draws)
    question = sentence(problem.phrase(ask))
    told = problem.sentences
    for _ in range(draws.pick((0, 0, 1, 1, 2))):
        told.insert(draws.integer(1, len(told)), sentence(problem.phrase("FILLER")))
    task = problem.phrase("TASK")
    prompt = " ".join([*([sentence(task)] if task else []), *told, question])
    return Task(
        family=FAMILY, prompt=prompt, reply=_reply(problem, draws), answer=str(problem.value)
    )


def _reply(problem: _Problem, draws: Draws) -> str:
    sentences = []
    intro = problem.phrase("INTRO")
    if intro:
        sentences.append(sentence(intro))
    if problem.opening and draws.chance(0.6):
        sentences.append(sentence(problem.opening))
    last = len(problem.steps) - 1
    for number, (step, state) in enumerate(problem.steps):
        sentences.append(step)
        if draws.chance(0.35):
            rule = "END" if number == last else "AFTER"
            sentences.append(sentence(problem.phrase(rule, state=state)))
    sentences.append(f"The answer is {problem.value}.")
    return " ".join(sentences)


def key(task: Task) -> str:
    """What decides the split: the numbers of the problem in order, whatever the wording."""
    return " ".join(_NUMBER.findall(task.prompt))


def check(task: Task, output: str) -> bool:
    """Whether the last "The answer is ..." of `output` names the right number."""
    answers = _ANSWER.findall(output)
    return bool(answers) and answers[-1] == task.answer
