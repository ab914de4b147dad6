"""The configurations in which the model must hold, and the mistakes that it must find.

Parameters are those of parameters.pml. Places 0 is a send queue that never fills up: most of the protocol
does not depend on the queue, and the two together have too many states to visit them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.checker import ASSERTIONS, DEADLOCK

AMPLE = {"PLACES": 0}
# Three places, of which transfers take two; a large message is two writes and a finish.
TIGHT = {"PLACES": 3, "MESSAGE_PLACES": 1, "PIECES": 2}
ONE_WAY = {"SENDS_1": 0}
SMALL_MESSAGES = {"SIZES": 1}
LARGE_MESSAGES = {"SIZES": 2}


@dataclass(frozen=True)
class Configuration:
    """Parameters under which no error may be found, and at least so many states."""

    name: str
    about: str
    defines: dict[str, int]
    least_states: int
    cycles: bool = False


@dataclass(frozen=True)
class Mistake:
    """A change of the protocol, named by its switch, and what the checker must say of it. Without the switch
    the same parameters hold."""

    name: str
    about: str
    switches: dict[str, int]
    defines: dict[str, int]
    found: str


# In seconds each: run with the tests.
QUICK = [
    Configuration(
        "both-ways",
        "two messages of any size each way; credit of the second that waits is held back",
        {**AMPLE},
        77_000,
    ),
    Configuration(
        "never-for-ever",
        "every execution ends: no cycle among the states",
        {**AMPLE, "SENDS_0": 4, **ONE_WAY},
        11_000,
        cycles=True,
    ),
    Configuration(
        "one-slot",
        "pools of one slot each, and the two credit messages that they allow for",
        {**AMPLE, "DATA": 1, "CONTROL": 1, "RESERVE": 2},
        37_000,
    ),
    Configuration(
        "goodbye",
        "either side says goodbye at any moment: it finds a slot too",
        {**AMPLE, "GOODBYE": 1, "SENDS_1": 1},
        86_000,
    ),
    Configuration(
        "heap",
        "small messages that nobody asked for: nearly all credit is held back",
        {**AMPLE, "SENDS_0": 4, "SENDS_1": 1, **SMALL_MESSAGES},
        1_900,
    ),
    Configuration(
        "too-small",
        "one of the receives is too small: refused, and the others go on",
        {**AMPLE, "SENDS_1": 1, "SMALL_1": 1},
        12_000,
    ),
    Configuration(
        "tags",
        "two tags, received in any order",
        {**AMPLE, "TAGS": 2, "SENDS_0": 3, **ONE_WAY},
        2_800,
    ),
    Configuration(
        "any-tag",
        "receives of any tag",
        {**AMPLE, "TAGS": 2, "ANY_TAG": 1, "SENDS_0": 3, "SENDS_1": 1},
        42_000,
    ),
    Configuration(
        "send-first",
        "a program that waits for its large send before it receives, and a peer that runs ahead",
        {**AMPLE, "MANNER_0": 1, "SENDS_0": 1, "SENDS_1": 3},
        10_000,
    ),
    Configuration(
        "receive-first",
        "a program that posts its receives before it sends, against one in any order",
        {**AMPLE, "MANNER_1": 2},
        26_000,
    ),
    Configuration(
        "behind",
        "a program that waits for a message sent behind half a pool of messages held back",
        {**AMPLE, "MANNER_1": 3, "SENDS_0": 4, **ONE_WAY, "TAGS": 2},
        720,
    ),
    Configuration(
        "notifications",
        "writes with a notification among messages; all credit held back until they are taken",
        {
            **AMPLE,
            "SENDS_0": 1,
            "SENDS_1": 1,
            "WRITES_0": 2,
            "WRITES_1": 1,
            "NOTIFICATION_BUDGET": 0,
        },
        51_000,
    ),
    Configuration(
        "tight-queue",
        "a send queue that fills up, with a message each way, of which nothing goes inline",
        {**TIGHT, "INLINE": 0, "SENDS_0": 1, "SENDS_1": 1},
        6_800,
    ),
    Configuration(
        "tight-one-way",
        "a send queue that fills up, and three messages of any size",
        {**TIGHT, "SENDS_0": 3, **ONE_WAY},
        41_000,
    ),
    Configuration(
        "tight-notifications",
        "a send queue that fills up, with writes that overtake nothing",
        {**TIGHT, "SENDS_0": 0, "SENDS_1": 0, "WRITES_0": 4, "NOTIFICATION_BUDGET": 0},
        450,
    ),
]

# A minute or so each: run by `make model`.
THOROUGH = [
    Configuration(
        "both-ways-3-2",
        "three messages one way, two the other; credit of the third that waits is held back",
        {**AMPLE, "SENDS_0": 3, "MESSAGE_BUDGET": 1},
        930_000,
    ),
    Configuration(
        "too-small-both-ways",
        "a receive that is too small on either side",
        {**AMPLE, "SMALL_0": 1, "SMALL_1": 1},
        520_000,
    ),
    Configuration("tags-both-ways", "two tags both ways", {**AMPLE, "TAGS": 2}, 190_000),
    Configuration(
        "large-4-2",
        "large messages, enough of them for four credit messages at once",
        {**AMPLE, "SENDS_0": 4, **LARGE_MESSAGES},
        610_000,
    ),
    Configuration(
        "odd-pools",
        "pools of three slots and one",
        {**AMPLE, "DATA": 3, "CONTROL": 1, "SENDS_0": 3, "SENDS_1": 1},
        24_000,
    ),
    Configuration(
        "tags-3-1",
        "two tags, three messages one way",
        {**AMPLE, "TAGS": 2, "SENDS_0": 3, "SENDS_1": 1},
        97_000,
    ),
    Configuration(
        "too-small-3-1",
        "a receive that is too small among three",
        {**AMPLE, "SENDS_0": 3, "SENDS_1": 1, "SMALL_1": 1},
        130_000,
    ),
    Configuration(
        "receive-first-3-2",
        "receives posted before anything is sent",
        {**AMPLE, "MANNER_1": 2, "SENDS_0": 3},
        160_000,
    ),
    Configuration(
        "tight-queue-2-1",
        "a send queue that fills up, and nothing inline",
        {**TIGHT, "INLINE": 0, "SENDS_0": 2, "SENDS_1": 1},
        170_000,
    ),
    Configuration(
        "tight-2-1", "a send queue of four places", {"SENDS_0": 2, "SENDS_1": 1}, 190_000
    ),
    Configuration(
        "tight-mixed",
        "messages and writes both ways through a send queue that fills up",
        {**TIGHT, "INLINE": 0, "SENDS_0": 1, **ONE_WAY, "WRITES_0": 2, "WRITES_1": 1},
        140_000,
    ),
]

NO_SLOT = ASSERTIONS["q_len(wire"]
LOST_CREDIT = ASSERTIONS["carried_data"]

MISTAKES = [
    Mistake(
        "one-pool",
        "answers take credit of the data pool",
        {"ONE_POOL": 1},
        {**AMPLE, "MANNER_0": 1, "SENDS_0": 1, "SENDS_1": 3},
        DEADLOCK,
    ),
    Mistake(
        "refusal-keeps-credit",
        "the slot of a message that was refused is not owed back",
        {"REFUSAL_KEEPS_CREDIT": 1},
        {**AMPLE, **ONE_WAY, "SMALL_1": 1},
        LOST_CREDIT,
    ),
    Mistake(
        "due-at-whole",
        "a credit message only where a whole pool is owed",
        {"DUE_AT_WHOLE": 1},
        {**AMPLE, "MANNER_1": 3, "SENDS_0": 4, **ONE_WAY, "TAGS": 2},
        DEADLOCK,
    ),
    Mistake(
        "never-due",
        "credit returns with other messages only",
        {"NEVER_DUE": 1},
        {**AMPLE, "SENDS_0": 3, **ONE_WAY},
        DEADLOCK,
    ),
    Mistake(
        "small-reserve",
        "three slots for the four credit messages of two pools",
        {"RESERVE": 3},
        {**AMPLE, "SENDS_0": 4, **LARGE_MESSAGES},
        NO_SLOT,
    ),
    Mistake(
        "no-reserve-for-one",
        "one slot for the two credit messages of pools of one slot",
        {"RESERVE": 1},
        {**AMPLE, "DATA": 1, "CONTROL": 1},
        NO_SLOT,
    ),
    Mistake(
        "credit-before-slot",
        "credit is returned before the slot is posted again",
        {"CREDIT_BEFORE_SLOT": 1},
        {**AMPLE, "SENDS_1": 1, "DATA": 1, "CONTROL": 1, "RESERVE": 2},
        NO_SLOT,
    ),
    Mistake(
        "eager-overtakes",
        "a small message passes a large one that waits for credit",
        {"EAGER_OVERTAKES": 1},
        {**AMPLE, "SENDS_0": 4, **ONE_WAY},
        ASSERTIONS["newest"],
    ),
    Mistake(
        "notifications-overtake",
        "a notification goes with its write though an older one waits",
        {"NOTIFICATIONS_OVERTAKE": 1},
        {**TIGHT, "SENDS_0": 0, "SENDS_1": 0, "WRITES_0": 4, "NOTIFICATION_BUDGET": 0},
        ASSERTIONS["last_notification"],
    ),
    Mistake(
        "takes-without-flush",
        "a message that waits is taken, and the credit that was held back for it is not sent off",
        {"TAKES_WITHOUT_FLUSH": 1},
        {**AMPLE, "SENDS_0": 4, **ONE_WAY, **SMALL_MESSAGES},
        DEADLOCK,
    ),
    Mistake(
        "refusal-forgets-id",
        "the refusal of a large message does not say which send it ends",
        {"REFUSAL_FORGETS_ID": 1},
        {**AMPLE, **ONE_WAY, "SMALL_1": 1},
        DEADLOCK,
    ),
    Mistake(
        "answered-twice",
        "a request to send is cleared twice",
        {"ANSWERED_TWICE": 1},
        {**AMPLE, "SENDS_0": 1, **ONE_WAY},
        ASSERTIONS["asked"],
    ),
    Mistake(
        "finish-first",
        "finish is posted before the last piece",
        {"FINISH_FIRST": 1},
        {**TIGHT, "SENDS_0": 1, **ONE_WAY},
        ASSERTIONS["written"],
    ),
    Mistake(
        "never-signalled",
        "no work is signalled to get places of the send queue back",
        {"NEVER_SIGNALLED": 1},
        {**TIGHT, "INLINE": 0, "SENDS_0": 4, **ONE_WAY, **SMALL_MESSAGES},
        DEADLOCK,
    ),
]
