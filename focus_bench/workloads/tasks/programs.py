"""Small programs with what they print: a tiny subset of Python, traced statement by statement.

The reply ends in "Output: 12 7". Every program is valid Python and prints exactly that.
"""

import re
from dataclasses import dataclass, field

from focus_bench.workloads.tasks.draws import Draws
from focus_bench.workloads.tasks.lexicon import words
from focus_bench.workloads.tasks.phrases import Phrases
from focus_bench.workloads.tasks.task import Task

FAMILY = "programs"

_MAX_VALUE = 200
_NAMES = words("a b c d k m n p x y z total count score size price")
_OUTPUT = re.compile(r"Output: ([0-9 ]+)")
_NUMBER = re.compile(r"\d+")

_PHRASES = Phrases("""
ASK_BEFORE: what does this program print? | run this program by hand: | trace this program:
 | read the code and give its output: | what is the output of this code?
 | follow this code line by line: | find out what this prints:
 | go through this program step by step:
ASK_AFTER: what does it print? | what is the output? | give the output.
 | trace it and give the output. | what is printed at the end?
INTRO: let us trace it. | we go line by line. | here is the trace: | we run it by hand.
 | step by step: | the values are: | let me follow the code. | ~ | ~
SET: {x} = {value} | {x} is {value} | {x} is set to {value} | set {x} to {value}
 | {x} starts at {value} | {x} gets {value} | we have {x} = {value} | the value of {x} is {value}
CHANGE: {x} = {sum} = {value} | {x} becomes {sum} = {value} | {x} is now {sum} = {value}
 | {x} gets {sum} = {value} | {sum} = {value}, so {x} is {value} | {sum} = {value} goes to {x}
 | set {x} to {sum} = {value} | we compute {x} = {sum} = {value} | next {x} is {sum} = {value}
CHOOSE: {x} = {call} = {value} | {x} is {value}, the {which} of {left} and {right}
 | {call} is {value}, so {x} is {value} | {value} is the {which} one, so {x} becomes {value}
 | the {which} of {left} and {right} is {value}, so {x} is {value}
YES: {test} is true | {test} holds | the test {test} is true | yes, {test} | check {test}: true
 | {test}, so we go in
NO: {test} is false | {test} does not hold | the test {test} is false | no, {test} is wrong
 | check {test}: false
ELSE: we go to else | the else part runs | so else is used | else comes next
SKIP: we skip the line | nothing is done | we go on | the line is left out
ROUND: {i} is {item} | with {i} = {item} | round with {i} = {item} | now {i} = {item}
 | for {i} = {item}
DONE: the loop ends | the loop is done | we leave the loop | that was the last round
SO_FAR: so far {values} | at this point {values} | now {values} | we have {values}
PRINT: it prints {names} | print shows {names} | we print {names} | the last line prints {names}
 | ~ | ~
""")


class _UnfitError(Exception):
    """A value left the range that is asked for, or the program changes nothing."""


@dataclass(kw_only=True, slots=True)
class _Machine:
    """Writes a program and runs it: the source, the values, and the trace in words."""

    draws: Draws
    source: list[str] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    first_values: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)

    def say(self, rule: str, **slots: int | str) -> None:
        """Add a line to the trace."""
        texts = {name: str(value) for name, value in slots.items()}
        self.trace.append(_PHRASES.expand(rule, self.draws, texts))

    def put(self, name: str, value: int) -> None:
        """Give a variable its value."""
        if not 0 <= value <= _MAX_VALUE:
            raise _UnfitError
        self.values[name] = value

    def change(self, name: str, left: int, operation: str, right: int) -> None:
        """Assign the result of an operation and say so."""
        value = {"+": left + right, "-": left - right, "*": left * right}[operation]
        self.put(name, value)
        self.say("CHANGE", x=name, sum=f"{left} {operation} {right}", value=value)

    def operand(self, low: int, high: int, but: str = "") -> str:
        """Source of a number, or of a variable other than `but`."""
        names = [name for name in self.values if name != but]
        if names and self.draws.chance(0.4):
            return self.draws.pick(names)
        return str(self.draws.integer(low, high))

    def value_of(self, operand: str) -> int:
        """Value of a variable or a number."""
        return self.values[operand] if operand in self.values else int(operand)


def _assign(machine: _Machine, names: list[str]) -> None:
    """``z = x + 7``, ``x -= y``, ``y = x * 2`` or ``y = max(x, 9)``."""
    draws = machine.draws
    source_name = draws.pick(list(machine.values))
    kind = draws.uniform()
    if kind < 0.45:
        _update(machine, source_name, indent="")
        return
    target = draws.pick(names)
    left = machine.values[source_name]
    if kind < 0.75:
        operation = draws.pick("+-")
        operand = machine.operand(2, min(40, max(2, left)), but=source_name)
        machine.source.append(f"{target} = {source_name} {operation} {operand}")
        machine.change(target, left, operation, machine.value_of(operand))
    elif kind < 0.88:
        factor = draws.integer(2, 9 if left < 10 else 3)
        machine.source.append(f"{target} = {source_name} * {factor}")
        machine.change(target, left, "*", factor)
    else:
        function = draws.pick(("max", "min"))
        operand = machine.operand(2, 60, but=source_name)
        right = machine.value_of(operand)
        machine.source.append(f"{target} = {function}({source_name}, {operand})")
        value = max(left, right) if function == "max" else min(left, right)
        machine.put(target, value)
        machine.say(
            "CHOOSE",
            x=target,
            call=f"{function}({left}, {right})",
            which="larger" if function == "max" else "smaller",
            left=left,
            right=right,
            value=value,
        )


def _update(machine: _Machine, name: str, indent: str) -> None:
    """``x += 7`` or ``x = x - y``, inside a branch or not."""
    draws = machine.draws
    operation = draws.pick("++-")
    operand = machine.operand(2, min(30, max(2, machine.values[name])), but=name)
    if draws.chance(0.6):
        machine.source.append(f"{indent}{name} {operation}= {operand}")
    else:
        machine.source.append(f"{indent}{name} = {name} {operation} {operand}")
    machine.change(name, machine.values[name], operation, machine.value_of(operand))


def _untaken(machine: _Machine, name: str) -> None:
    """A branch that is not run."""
    operation = machine.draws.pick("+-")
    machine.source.append(f"    {name} {operation}= {machine.draws.integer(2, 30)}")


def _branch(machine: _Machine) -> None:
    """``if x > 12:`` with or without ``else:``."""
    draws = machine.draws
    left, name = draws.pick(list(machine.values)), draws.pick(list(machine.values))
    right = machine.operand(2, 60, but=left)
    sign = draws.pick("<>")
    a, b = machine.value_of(left), machine.value_of(right)
    holds = a > b if sign == ">" else a < b
    has_else = draws.chance(0.6)
    machine.source.append(f"if {left} {sign} {right}:")
    machine.say("YES" if holds else "NO", test=f"{a} {sign} {b}")
    if holds:
        _update(machine, name, indent="    ")
    else:
        _untaken(machine, name)
    if has_else:
        machine.source.append("else:")
        if holds:
            _untaken(machine, name)
        else:
            machine.say("ELSE")
            _update(machine, name, indent="    ")
    elif not holds:
        machine.say("SKIP")


def _loop(machine: _Machine) -> None:
    """``for i in range(3):`` or ``for i in [4, 9, 2]:`` with one statement."""
    draws = machine.draws
    name = draws.pick(list(machine.values))
    items: list[int]
    if draws.chance(0.5):
        items = list(range(draws.integer(2, 4)))
        machine.source.append(f"for i in range({len(items)}):")
        operand = draws.pick(("i", str(draws.integer(2, 20))))
    else:
        items = [draws.integer(2, 20) for _ in range(draws.integer(2, 4))]
        machine.source.append(f"for i in [{', '.join(map(str, items))}]:")
        operand = "i"
    operation = "-" if machine.values[name] >= 60 and draws.chance(0.7) else "+"
    machine.source.append(f"    {name} {operation}= {operand}")
    for item in items:
        machine.say("ROUND", i="i", item=item)
        right = item if operand == "i" else int(operand)
        machine.change(name, machine.values[name], operation, right)
    if draws.chance(0.4):
        machine.say("DONE")


def _while(machine: _Machine) -> None:
    """``while x < 40:`` that runs one to four times."""
    draws = machine.draws
    name = draws.pick(list(machine.values))
    step, rounds = draws.integer(3, 20), draws.integer(1, 4)
    start = machine.values[name]
    limit = start + step * rounds - draws.integer(0, step - 1)
    machine.source += [f"while {name} < {limit}:", f"    {name} += {step}"]
    while machine.values[name] < limit:
        machine.say("YES", test=f"{machine.values[name]} < {limit}")
        machine.change(name, machine.values[name], "+", step)
    machine.say("NO", test=f"{machine.values[name]} < {limit}")


def _write(draws: Draws) -> tuple[_Machine, list[str]]:
    """A program that has run, and the names that it prints."""
    machine = _Machine(draws=draws)
    names = draws.distinct(_NAMES, 3)
    for name in names[: draws.integer(1, 2)]:
        value = draws.integer(2, 60)
        machine.source.append(f"{name} = {value}")
        machine.put(name, value)
        machine.first_values[name] = value
        machine.say("SET", x=name, value=value)
    compound = draws.pick((_branch, _branch, _loop, _loop, _while))
    statements = draws.integer(1, 4)
    place = draws.integer(0, statements - 1) if draws.chance(0.75) else statements
    for statement in range(statements):
        if statement == place:
            compound(machine)
        else:
            _assign(machine, names)
        if draws.chance(0.15):
            known = ", ".join(f"{name} = {value}" for name, value in machine.values.items())
            machine.say("SO_FAR", values=known)
    changed = [n for n, value in machine.values.items() if machine.first_values.get(n) != value]
    if not changed:
        raise _UnfitError
    # A variable that still has its first value is printed beside another one at most.
    printed = [draws.pick(changed)]
    others = [name for name in machine.values if name not in printed]
    if others and draws.chance(0.4):
        printed.insert(draws.integer(0, 1), draws.pick(others))
    return machine, printed


def draw(draws: Draws) -> Task:
    """A program, its trace and the line that it prints."""
    while True:
        try:
            machine, printed = _write(draws)
            break
        except _UnfitError:
            continue
    output = " ".join(str(machine.values[name]) for name in printed)
    code = "\n".join([*machine.source, f"print({', '.join(printed)})"])
    if draws.chance(0.7):
        prompt = f"{_line(draws, 'ASK_BEFORE')}\n{code}"
    else:
        prompt = f"{code}\n{_line(draws, 'ASK_AFTER')}"
    lines = list(machine.trace)
    intro = _line(draws, "INTRO")
    if intro:
        lines.insert(0, intro)
    shown = _PHRASES.expand("PRINT", draws, {"names": " and ".join(printed)})
    if shown:
        lines.append(shown)
    return Task(
        family=FAMILY, prompt=prompt, reply="\n".join([*lines, f"Output: {output}"]), answer=output
    )


def _line(draws: Draws, rule: str) -> str:
    text = _PHRASES.expand(rule, draws, {})
    return text[:1].upper() + text[1:]


def key(task: Task) -> str:
    """What decides the split: the numbers of the program in order, whatever the names."""
    return " ".join(_NUMBER.findall(task.prompt))


def check(task: Task, output: str) -> bool:
    """Whether the last "Output: ..." line of `output` is what the program prints."""
    lines = _OUTPUT.findall(output)
    return bool(lines) and lines[-1].split() == task.answer.split()
