"""How word problems and their worked answers are worded.

Rules come in pairs: an event as the problem tells it (BUS_ON) and as the reply recalls it
(BUS_ON_WHY). Knows no numbers.
"""

from focus_bench.workloads.tasks.phrases import Phrases

PHRASES = Phrases("""
FILLER: it is a [DAY] day | the sky is [COLOR] | a dog [SLEEPS] near the [SPOT]
 | the weather is [DAY] | {other} is reading a book | {other} sings a song | the birds are [LOUD]
 | {other} likes the [SPOT] | the [SPOT] is very [LOUD] today | everyone is [HAPPY]
 | {other} is [HAPPY] today
DAY: sunny | warm | cold | windy | rainy | quiet | long
COLOR: blue | gray | clear
SLEEPS: sleeps | rests | plays | barks
SPOT: door | garden | river | bridge | tree | window | market
LOUD: loud | quiet | busy | calm
HAPPY: happy | tired | hungry | in a good mood
TASK: solve this problem: | work this out: | here is a problem: | please find the answer: | ~ | ~
 | ~
WHEN: then | later | after that | after lunch | the next day | in the evening | a bit later | next
 | ~ | ~ | ~ | ~

HOLD_START: {name} has {n} {items} | {name} starts with {n} {items} | {name} owns {n} {items}
 | {name} keeps {n} {items} in a [BOX] | there are {n} {items} in the [BOX] of {name}
 | {name} [FOUND] {n} {items} [EARLIER]
HOLD_START_WHY: {name} starts with {n} {items} | {name} has {n} {items} at first
 | we begin with {n} {items} | there are {n} {items} at the start
HOLD_ROWS: {name} has {k} [BOXES] with {m} {items} in each
 | {name} owns {k} [BOXES] of {m} {items} each
 | {name} lays out {k} rows with {m} {items} in each row
HOLD_ROWS_WHY: {name} has {k} groups of {m} | there are {k} groups with {m} {items} each
 | each of the {k} groups has {m} {items}
BOX: box | bag | jar | drawer | basket
BOXES: boxes | bags | jars | baskets
FOUND: found | bought | got | collected
EARLIER: last week | yesterday | this morning | on Monday | on Sunday
HOLD_FIND: {he} [FINDS] {n} more {items} [WHERE] | {he} [FINDS] {n} {items} [WHERE]
HOLD_FIND_WHY: {he} [FINDS] {n} more | {n} more are found | {he} [FINDS] {n}
FINDS: finds | discovers | picks up | collects
WHERE: near the river | in the garden | under the bed | at school | in the park | on the way home
HOLD_BUY: {he} buys {n} more {items} [SHOP] | {he} buys {n} {items} [SHOP]
 | {he} pays for {n} {items} [SHOP]
HOLD_BUY_WHY: {he} buys {n} more | {he} buys {n} | {n} more are bought
SHOP: at the market | in a shop | at the fair | in town | ~
HOLD_GIFT: {friend} gives {him} {n} {items} | {he} gets {n} {items} from {friend}
 | {friend} brings {him} {n} more {items} | {friend} sends {him} {n} {items}
HOLD_GIFT_WHY: {friend} gives {him} {n} | {he} gets {n} from {friend} | {n} come from {friend}
HOLD_WIN: {he} wins {n} {items} in a [GAME] | {he} earns {n} {items} for [HELP]
HOLD_WIN_WHY: {he} wins {n} | {he} earns {n} more | {n} more are won
GAME: game | race | contest
HELP: good work | help in the house | a good song
HOLD_GIVE: {he} gives {n} {items} to {friend} | {he} hands {n} of the {items} to {friend}
 | {friend} gets {n} of the {items} from {him} | {he} sends {n} {items} to {friend}
HOLD_GIVE_WHY: {he} gives {n} to {friend} | {n} go to {friend} | {friend} gets {n}
HOLD_LOSE: {he} loses {n} of the {items} | {n} of the {items} get lost
 | {n} {items} fall into the river | {he} drops {n} {items} on the street
HOLD_LOSE_WHY: {he} loses {n} | {n} are lost | {n} are gone
HOLD_SELL: {he} sells {n} {items} [SHOP] | {he} sells {n} of the {items} to a [BUYER]
HOLD_SELL_WHY: {he} sells {n} | {n} are sold | a sale takes {n} away
BUYER: neighbor | teacher | sailor | farmer
HOLD_EAT: {he} eats {n} of the {items} | {he} cooks {n} of the {items}
 | a goat eats {n} of the {items}
HOLD_EAT_WHY: {n} are eaten | {n} are used up | {n} are gone
HOLD_PACKS: {he} buys {k} [BOXES] with {m} {items} in each
 | {friend} brings {k} [BOXES] of {m} {items} each
HOLD_PACKS_WHY: the {k} groups hold {m} each | there are {k} groups of {m}
 | {k} times {m} {items} come
HOLD_PACKS_SUM: these are added to the rest | {he} gets all of them | {n} more come in
HOLD_EACH: {he} gives {m} {items} to each of {k} friends
 | {k} friends get {m} {items} each from {him}
HOLD_EACH_WHY: {k} friends get {m} each | each of {k} friends takes {m}
 | {k} times {m} are given away
HOLD_EACH_SUM: these are taken away | {n} go to the friends | {he} gives away all of these
HOLD_DOUBLE: then {he} doubles the number of {items}
 | {his} luck is good and the number of {items} doubles
 | {friend} gives {him} as many {items} as {he} has already
HOLD_DOUBLE_WHY: the number doubles | there are twice as many now | {he} now has two times as many
HOLD_HALF: {he} gives half of the {items} to {friend} | {he} loses half of the {items}
 | half of the {items} go to {friend}
HOLD_HALF_WHY: half of them are left | {he} keeps one half | only half stay
HOLD_ASK: how many {items} does {name} have now? | how many {items} does {name} have in the end?
 | what is the number of {items} that {name} has now? | how many {items} are left with {name}?
HOLD_STATE: {name} has {c} {items} | {name} is at {c} {items} | there are {c} {items}

BUS_START: a {bus} [LEAVES] with {n} people | a {bus} carries {n} people
 | {n} people sit in a {bus} | there are {n} people on a {bus}
BUS_START_WHY: the {bus} starts with {n} people | at first {n} people are on the {bus}
LEAVES: leaves the station | leaves the city | sets off | starts its trip
BUS_ROWS: a {bus} has {k} rows with {m} people in each | {k} groups of {m} people sit in a {bus}
BUS_ROWS_WHY: there are {k} groups of {m} people | {k} groups have {m} people each
BUS_ON: [STOP] {n} people get on | [STOP] {n} more people come on board | {n} people enter [STOP]
BUS_ON_WHY: {n} people get on | {n} more come on board | {n} people enter
BUS_OFF: [STOP] {n} people get off | [STOP] {n} people leave | {n} people step out [STOP]
BUS_OFF_WHY: {n} people get off | {n} leave | {n} people step out
STOP: at the park | at the school | at the museum | at the bridge | at the market | at the tower
BUS_PACKS: [STOP] {k} groups of {m} people get on | {k} families with {m} people each enter [STOP]
BUS_PACKS_WHY: there are {k} groups of {m} | {k} groups with {m} people come
BUS_PACKS_SUM: they all get on | {n} more people are on board | we add them
BUS_EACH: [STOP] {k} groups of {m} people get off
 | {k} classes with {m} children each leave [STOP]
BUS_EACH_WHY: {k} groups of {m} leave | the {k} groups have {m} people each
BUS_EACH_SUM: they all get off | {n} people are gone | we take them away
BUS_DOUBLE: [STOP] the number of people doubles
 | [STOP] as many people get on as there are already
BUS_DOUBLE_WHY: the number doubles | there are twice as many people
BUS_HALF: [STOP] half of the people get off | half of the people leave [STOP]
BUS_HALF_WHY: half of them stay | only half are left
BUS_ASK: how many people are on the {bus} now? | how many people are left on the {bus}?
 | how many people ride on at the end?
BUS_STATE: the {bus} has {c} people | there are {c} people on the {bus} | {c} people are on board

SHOP_START: a {shop} has {n} {items} [EARLY] | there are {n} {items} in a {shop} [EARLY]
 | {name} works in a {shop} with {n} {items}
SHOP_START_WHY: the {shop} starts with {n} {items} | there are {n} {items} at first
EARLY: in the morning | on Monday | at the start of the day | before lunch
SHOP_ROWS: a {shop} has {k} shelves with {m} {items} on each
 | in a {shop} there are {k} [BOXES] of {m} {items} each
SHOP_ROWS_WHY: there are {k} groups of {m} {items} | {k} places hold {m} {items} each
SHOP_ADD: {name} brings {n} more {items} | a [DRIVER] brings {n} {items} | {n} new {items} arrive
 | {name} puts {n} more {items} on the shelf
SHOP_ADD_WHY: {n} more arrive | {n} {items} come in | {n} are added
DRIVER: driver | farmer | sailor | truck
SHOP_SALE: {n} {items} are sold | the {shop} sells {n} {items} | a [BUYER] buys {n} {items}
 | {name} sells {n} of the {items}
SHOP_SALE_WHY: {n} are sold | a sale takes {n} away | {n} {items} leave the {shop}
SHOP_BREAK: {n} of the {items} are thrown away | {n} {items} are bad and must go
SHOP_BREAK_WHY: {n} are thrown away | {n} are bad
SHOP_PACKS: {k} [BOXES] of {m} {items} each arrive
 | {name} brings {k} [BOXES] with {m} {items} in each
SHOP_PACKS_WHY: there are {k} groups of {m} | {k} times {m} {items} arrive
SHOP_PACKS_SUM: they all go on the shelf | we add them to the rest | {n} more are there
SHOP_EACH: {k} people buy {m} {items} each | {name} sells {m} {items} to each of {k} people
SHOP_EACH_WHY: {k} people take {m} each | each of {k} people buys {m}
SHOP_EACH_SUM: they are all sold | we take them away | {n} {items} are gone
SHOP_DOUBLE: the number of {items} doubles | {name} brings as many {items} as there are already
SHOP_DOUBLE_WHY: the number doubles | there are twice as many now
SHOP_HALF: half of the {items} are sold | a [BUYER] buys half of the {items}
SHOP_HALF_WHY: half of them stay | one half is left
SHOP_ASK: how many {items} does the {shop} have now? | how many {items} are left in the {shop}?
 | how many {items} are in the {shop} at the end?
SHOP_STATE: the {shop} has {c} {items} | there are {c} {items} in the {shop}
 | {c} {items} are there

GROUP_STATE: the groups have {c} in all | the groups make {c} | this part is {c}
 | there are {c} in the groups

MORE: {p} has {n} more {items} than {q} | {p} has {n} {items} more than {q}
MORE_WHY: {p} has {n} more than {q} | {p} is {n} above {q}
FEWER: {p} has {n} fewer {items} than {q} | {p} has {n} {items} less than {q}
FEWER_WHY: {p} has {n} fewer than {q} | {p} is {n} below {q}
TIMES: {p} has {n} times as many {items} as {q} | for each one of the {items} of {q}, {p} has {n}
TIMES_WHY: {p} has {n} times as many as {q} | {p} has {n} for each one of {q}
COMPARE_ASK: how many {items} does {p} have? | what is the number of {items} that {p} has?
COMPARE_STATE: {p} has {c} {items} | the number for {p} is {c} | {p} owns {c}
TOTAL_ASK: how many {items} do {q} and {p} have together? | what do {q} and {p} have in total?
TOTAL_WHY: {q} and {p} put theirs together | we want the total of {q} and {p}
TOTAL_STATE: the total is {c} {items} | together they have {c} | {q} and {p} have {c} {items}

PRICE: one of the {items} costs {n} coins | the {items} cost {n} coins each
 | the price of the {items} is {n} coins each
COUNT: {name} buys {k} {items} | {name} takes {k} of the {items} | {name} wants {k} {items}
COUNT_TOO: {he} also buys {k} {items} | {he} takes {k} {items} as well
 | {he} wants {k} {items} too
COUNT_WHY: {k} {items} cost {n} coins each | {he} buys {k} {items} for {n} each
 | we pay {n} coins {k} times
BOTH_WHY: we add the two prices | both parts are put together | {he} must pay for both
BOTH_ASK: how many coins does {name} pay? | what does {name} pay in all?
 | how many coins is that in total?
PAY: {he} pays with {n} coins | {he} has {n} coins in {his} [BOX] | {he} hands over {n} coins
PAY_WHY: {he} pays with {n} coins | {n} coins are there to pay with | we take the price from {n}
PAY_ASK: how many coins does {name} have left? | how many coins does {he} get back?
 | how many coins are left?
COST_STATE: this costs {c} coins | that is {c} coins | the price is {c} coins
PAY_STATE: {c} coins are left | {name} keeps {c} coins | {he} has {c} coins now

INTRO: let us solve this step by step. | let us think. | we go step by step.
 | we work it out slowly. | here is the way to do it. | we can count this. | let me see.
 | this is how it goes. | ~ | ~ | ~
FIRST: first | to begin | at the start | in step one | to start
NEXT: then | next | after that | now | in the next step | later
LAST: finally | at last | in the end | last | then | now
STEP: {conn}, {why}, so [WE_GET] {eq} | {conn}, {why}: {told} | [SINCE] {why}, [WE_GET] {eq}
 | {why}, [WHICH] {eq} | {conn}, {why} and [WE_GET] {eq} | {conn}, {do}: {told}
 | {conn}, {do} because {why}: {told} | {why}. [THAT] {eq}
WE_GET: we get | we have | we find | it is | that gives
SINCE: since | because | as
WHICH: which gives | which makes | and that means | so we write
THAT: that is | this gives | so we have | we write | this means
DO_ADD: we add {right} to {left} | we add {right} | {left} grows by {right} | we go up by {right}
DO_SUB: we take {right} from {left} | we take away {right} | {left} drops by {right}
 | we go down by {right}
DO_MUL: we multiply {left} by {right} | we count {left} times {right}
 | we take {right} and count it {left} times
DO_HALF: we cut {left} in half | we split {left} in two parts | we divide {left} by {right}
EQ_ADD: {left} + {right} = {result}
EQ_SUB: {left} - {right} = {result}
EQ_MUL: {left} * {right} = {result}
EQ_HALF: {left} / {right} = {result}
TOLD_ADD: {eq} | {eq} | {left} plus {right} is {result} | {left} plus {right} makes {result}
TOLD_SUB: {eq} | {eq} | {left} minus {right} is {result} | {left} minus {right} leaves {result}
TOLD_MUL: {eq} | {eq} | {left} times {right} is {result} | {left} times {right} makes {result}
TOLD_HALF: {eq} | {eq} | half of {left} is {result} | one half of {left} makes {result}
AFTER: so {state} | this means {state} | at this point {state} | so far, {state} | [GOOD], {state}
GOOD: good | fine | well | okay
END: so {state} | this tells us that {state} | we see that {state} | and so {state}
""")
