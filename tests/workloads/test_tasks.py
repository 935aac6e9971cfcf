"""Generated tasks: pure in (split, seed, index), split by content, correct, and not guessable."""

import contextlib
import io
import re
from collections import Counter
from itertools import pairwise

import pytest

from focus_bench.core.errors import UsageError
from focus_bench.workloads.tasks.constraints import satisfies
from focus_bench.workloads.tasks.generate import (
    FAMILIES,
    MIX,
    SCORED_FAMILIES,
    check,
    generate,
    generate_many,
    split_key,
)
from focus_bench.workloads.tasks.splits import split_of
from focus_bench.workloads.tasks.task import SPLITS, TEST, TRAIN, Task

NUMBER = re.compile(r"\d+")


@pytest.fixture(scope="module")
def train() -> list[Task]:
    return generate_many(TRAIN, 0, 0, 20_000)


@pytest.fixture(scope="module")
def test() -> list[Task]:
    return generate_many(TEST, 0, 0, 2_000)


def of_family(family: str, split: str = TRAIN, count: int = 1_500) -> list[Task]:
    return generate_many(split, 5, 0, count, mix=family)


def test_a_task_depends_on_split_seed_and_index_only() -> None:
    many = generate_many(TRAIN, 3, 10, 20)
    assert many == [generate(MIX, TRAIN, 3, index) for index in range(10, 30)]
    assert generate_many(TRAIN, 3, 0, 30)[10:] == many
    assert generate("problems", TEST, 3, 7) == generate({"problems": 2.0}, TEST, 3, 7)
    others = [generate_many(TRAIN, 4, 10, 20), generate_many(TEST, 3, 10, 20)]
    assert all(set(map(str, other)).isdisjoint(map(str, many)) for other in others)
    assert generate_many(TRAIN, 3, 10, 0) == []


def test_the_mix_is_what_comes_out(train: list[Task]) -> None:
    counts = Counter(task.family for task in train)
    assert set(counts) == set(FAMILIES)
    for family, weight in MIX.items():
        assert counts[family] / len(train) == pytest.approx(weight, abs=0.02)


def test_no_prompt_and_no_content_is_in_both_splits(train: list[Task], test: list[Task]) -> None:
    assert {task.prompt for task in train}.isdisjoint(task.prompt for task in test)
    content = {(task.family, split_key(task)) for task in train}
    assert content.isdisjoint((task.family, split_key(task)) for task in test)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_content_alone_decides_the_split(family: str, split: str) -> None:
    tasks = of_family(family, split, 300)
    assert {split_of(task.family, split_key(task)) for task in tasks} == {split}


def test_equal_prompts_have_equal_answers_and_content(train: list[Task]) -> None:
    # What makes an overlap impossible: the content that decides the split is read off the prompt.
    seen: dict[str, tuple[str, str]] = {}
    for task in train + of_family("instructions", count=6_000):
        found = (task.answer, split_key(task))
        assert seen.setdefault(task.prompt, found) == found


@pytest.mark.parametrize("family", ["problems", "programs"])
def test_content_is_the_numbers_of_the_prompt(family: str) -> None:
    for task in of_family(family, count=100):
        assert split_key(task).split() == NUMBER.findall(task.prompt)


def test_every_reply_passes_its_check_and_stories_never_do(
    train: list[Task], test: list[Task]
) -> None:
    for task in train + test:
        assert check(task, task.reply) == (task.family in SCORED_FAMILIES), task


@pytest.mark.parametrize("family", SCORED_FAMILIES)
def test_replies_to_other_tasks_fail(family: str) -> None:
    tasks = of_family(family)
    right = sum(check(a, b.reply) for a, b in pairwise(tasks))
    assert right / len(tasks) < 0.05
    assert not any(check(task, "") or check(task, task.reply[:5]) for task in tasks)


@pytest.mark.parametrize("family", SCORED_FAMILIES)
def test_constant_and_majority_replies_score_under_five_percent(family: str) -> None:
    tasks = of_family(family, TEST, 1_000)
    common = Counter(task.answer for task in of_family(family)).most_common(10)
    reply_of = {task.answer: task.reply for task in of_family(family)}
    constants = [reply_of[answer] for answer, _ in common]
    constants += ["The answer is 0.", "The answer is 10.", "Output: 0", "Output: 10"]
    for reply in constants:
        assert sum(check(task, reply) for task in tasks) / len(tasks) < 0.05
    # A number of the prompt is no answer either.
    for place in (0, -1):
        numbers = [(NUMBER.findall(task.prompt) or ["0"])[place] for task in tasks]
        shot = zip(tasks, numbers, strict=True)
        right = sum(check(task, f"The answer is {n}. Output: {n}") for task, n in shot)
        assert right / len(tasks) < 0.05


EQUATION = re.compile(
    r"(?:(\d+) (\+|-|\*|/|plus|minus|times) (\d+)|half of (\d+)) (?:=|is|makes|leaves) (\d+)"
)


def equations(reply: str) -> list[tuple[int, int, int]]:
    """Operands and result of each written-out step, after checking that they agree."""
    found = []
    for left, sign, right, halved, result in EQUATION.findall(reply):
        a, b, c = int(left or halved), int(right or 2), int(result)
        assert (
            c
            in {
                "+": [a + b],
                "plus": [a + b],
                "-": [a - b],
                "minus": [a - b],
                "*": [a * b],
                "times": [a * b],
                "/": [a / b],
                "": [a / 2],
            }[sign]
        )
        found.append((a, b, c))
    return found


def test_problem_steps_are_true_and_lead_from_the_prompt_to_the_answer() -> None:
    lengths = Counter()
    for task in of_family("problems"):
        steps = equations(task.reply.replace("one half of", "half of"))
        known = {2, *map(int, NUMBER.findall(task.prompt))}
        for left, right, result in steps:
            assert {left, right} <= known, task
            known.add(result)
        assert str(steps[-1][2]) == task.answer
        assert 0 <= int(task.answer) <= 200
        assert task.reply.endswith(f"The answer is {task.answer}.")
        lengths[len(steps)] += 1
    assert set(lengths) == {2, 3, 4}


RIDE = re.compile(
    r"(?P<rows>\d+ rows with \d+|\d+ groups of \d+ people sit)"
    r"|(?P<k>\d+) (?:groups of|families with|classes with) (?P<m>\d+) (?:people|children)"
    r"(?: with people)?(?: each)? (?P<many>get on|enter|get off|leave)"
    r"|(?P<n>\d+) (?:more )?people (?P<one>get on|come on board|enter|get off|leave|step out)"
    r"|(?P<double>number of people doubles|as many people get on)|(?P<half>half of the people)"
    r"|(?P<start>\d+)"
    , re.IGNORECASE,
)  # fmt: skip


def ride(prompt: str) -> int:
    """How many people are on board at the end, read off the text without the generator."""
    value = 0
    for found in RIDE.finditer(prompt):
        arrives = (found["many"] or found["one"] or "") in ("get on", "enter", "come on board")
        if found["rows"]:
            rows, seats = map(int, NUMBER.findall(found["rows"]))
            value = rows * seats
        elif found["k"] or found["n"]:
            amount = int(found["k"]) * int(found["m"]) if found["k"] else int(found["n"])
            value += amount if arrives else -amount
        elif found["double"]:
            value *= 2
        elif found["half"]:
            value //= 2
        else:
            value = int(found["start"])
    return value


def test_rides_read_off_the_text_give_the_answer() -> None:
    tasks = [
        task
        for task in of_family("problems", count=3_000)
        if re.search(r"\b(bus|train|tram)\b", task.prompt)
    ]
    assert len(tasks) > 300
    for task in tasks:
        assert str(ride(task.prompt)) == task.answer, task


COMPARED = re.compile(
    r"(?P<p>[A-Z]\w+) has (?P<n>\d+)(?: \w+)? (?P<word>more|fewer|less|times)\b"
    r".*? (?P<q>[A-Z]\w+)\."
    r"|of (?P<q2>[A-Z]\w+), (?P<p2>[A-Z]\w+) has (?P<each>\d+)\."
)


def test_comparisons_read_off_the_text_give_the_answer() -> None:
    seen = 0
    for task in of_family("problems", count=3_000):
        steps = [found for found in COMPARED.finditer(task.prompt)]
        if not steps:
            continue
        seen += 1
        value_of = {steps[0]["q"] or steps[0]["q2"]: int(NUMBER.findall(task.prompt)[0])}
        for found in steps:
            base = value_of[found["q"] or found["q2"]]
            number = int(found["n"] or found["each"])
            word = found["word"] or "times"
            change = number if word == "more" else -number
            result = base * number if word == "times" else base + change
            value_of[found["p"] or found["p2"]] = result
        question = task.prompt.rpartition(". ")[2]
        asked = [name for name in value_of if re.search(rf"\b{name}\b", question)]
        assert str(sum(value_of[name] for name in asked)) == task.answer, task
    assert seen > 300


def test_programs_print_their_answer_in_python() -> None:
    for task in of_family("programs"):
        code = task.prompt
        for line in (code.splitlines()[0], code.splitlines()[-1]):
            if line.endswith((":", "?", ".")) and " = " not in line:
                code = code.replace(line, "")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})  # a program that the generator has just written
        assert printed.getvalue().strip() == task.answer, task
        assert task.reply.endswith(f"\nOutput: {task.answer}")
        assert all(0 <= int(number) <= 200 for number in NUMBER.findall(task.reply))


@pytest.mark.parametrize(
    ("output", "right"),
    [
        ("The answer is 42.", True),
        ("The answer is 7. No. The answer is 42.", True),
        ("The answer is 42. No. The answer is 7.", False),
        ("The answer is 142.", False),
        ("The answer is 4", False),
        ("42", False),
    ],
)
def test_the_last_answer_of_a_problem_counts(output: str, right: bool) -> None:
    task = Task(family="problems", prompt="", reply="", answer="42")
    assert check(task, output) is right


@pytest.mark.parametrize(
    ("output", "right"),
    [("x = 3\nOutput: 3 12", True), ("Output: 12 3", False), ("Output: 3", False), ("3 12", False)],
)
def test_the_whole_printed_line_of_a_program_counts(output: str, right: bool) -> None:
    assert check(Task(family="programs", prompt="", reply="", answer="3 12"), output) is right


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        ("lines 2 3", "a b c\nd e f", "a b c\nd e"),
        ("lines 1 2", "a b", "a b\na b"),
        ("sentences 2", "The fox ran. It slept.", "The fox ran. It slept. Good."),
        ("count fox 2", "A fox met a Fox.", "A fox met foxes."),
        ("first my friend", "My friend, hello.", "Hello my friend."),
        ("last the end", "This is the end.", "The end is near."),
        ("case upper", "RED BLUE", "RED Blue"),
        ("case lower", "red, blue", "Red, blue"),
        ("case lower", "red", ""),
        ("with red", "blue red", "blue reds"),
        ("without red", "blue", "blue red"),
        ("topic colors", "red blue", "red house"),
        ("topic the sea", "Here is my list:\n- wave\n- fish", "Here is my list:\n- wave\n- red"),
        ("different", "red blue", "red Red"),
        ("different", "Here here:\n- a\n- b", "Here:\n- a\n- a"),
        ("bullets - 2", "Here:\n- a\n- b", "- a\n* b"),
        ("bullets * 1", "* a", "* a\n* b"),
        ("bullets 1. 2", "1. a\n2. b", "1. a\n1. b"),
        ("result a b", "Result: b a\nResult: a, b", "Result: a, b\nResult: b, a"),
        ("result CAT", "Result: CAT", "Result: cat"),
    ],
)
def test_constraints(constraint: str, good: str, bad: str) -> None:
    assert satisfies(good, constraint)
    assert not satisfies(bad, constraint)
    assert not satisfies(good, f"{constraint}\nlines 9 9")


def test_wording_varies() -> None:
    for family in FAMILIES:
        tasks = of_family(family, count=1_000)
        assert len({task.reply for task in tasks}) > 990
    shapes = {NUMBER.sub("#", task.reply) for task in of_family("programs", count=1_000)}
    assert len(shapes) > 990


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"split": "dev"}, "split"),
        ({"mix": "poems"}, "poems"),
        ({"mix": {"problems": -1.0}}, "weight of problems"),
        ({"mix": {"problems": 0.0}}, "mix"),
        ({"start": -1}, "start"),
        ({"count": -1}, "count"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], named: str) -> None:
    usual: dict[str, object] = {"split": TRAIN, "seed": 0, "start": 0, "count": 1}
    with pytest.raises(UsageError, match=named):
        generate_many(**{**usual, **arguments})  # type: ignore[arg-type]


def test_an_unknown_constraint_is_named() -> None:
    with pytest.raises(UsageError, match="rhyme"):
        satisfies("a", "rhyme b")
