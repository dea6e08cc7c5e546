"""The vocabulary of the sample's invented world: statements and questions about towns, companies and ships.

In a sentence `{n}` is the entity and `{v}` the value. Most statements share no word with the questions for them: a word match
finds the entity, and only a trained model finds the passage.
"""

from __future__ import annotations

from typing import NamedTuple


class Relation(NamedTuple):
    """A kind of fact: what it is about, the pool its values come from, ways to state it in a passage, ways to ask for it."""

    topic: str
    pool: str
    statements: tuple[str, ...]
    asks: tuple[str, ...]


class Kind(NamedTuple):
    """A kind of entity, with the facts known of each."""

    noun: str
    relations: tuple[Relation, ...]


TOWN = Kind(
    "town",
    (
        Relation(
            "founder",
            "person",
            (
                "{n} was founded by {v}",
                "{v} was the first settler and founder of {n}",
                "the settlers who came to {n} followed {v}",
                "{v} drew the plan on which {n} was established",
                "{n} owes its start to the person of {v}",
            ),
            (
                "who founded {n}",
                "who was the founder of {n}",
                "which person established {n}",
                "by whom was {n} begun",
                "who created the settlement of {n}",
            ),
        ),
        Relation(
            "food",
            "dish",
            (
                "the favourite dish of {n} is {v}",
                "cooks in {n} are proud of their food, above all {v}",
                "at every feast {n} serves {v}",
                "a meal in {n} is nothing without {v}",
                "travellers come to {n} to taste {v}",
            ),
            (
                "what food is {n} famous for",
                "what do people like to eat in {n}",
                "what is the typical dish of {n}",
                "which meal is a speciality of {n}",
                "what is on the plates of {n}",
            ),
        ),
        Relation(
            "river",
            "river",
            (
                "the {v} flows past {n}",
                "barges reach {n} along the {v}",
                "both banks of the {v} belong to {n}",
                "mills of {n} are driven by the water of the {v}",
                "{n} was built where the {v} bends",
            ),
            (
                "which river flows through {n}",
                "what water does {n} lie on",
                "on which stream was {n} built",
                "what is the waterway of {n}",
                "what river crosses {n}",
            ),
        ),
        Relation(
            "industry",
            "trade",
            (
                "most families of {n} live from {v}",
                "{v} brings wealth to {n}",
                "the chief occupation in {n} is {v}",
                "the industry of {n} turned to {v}",
                "{n} grew rich on {v}",
            ),
            (
                "what is the main industry of {n}",
                "how do people earn money in {n}",
                "which business made {n} rich",
                "what trade is {n} known for",
                "what is the economy of {n} based on",
            ),
        ),
        Relation(
            "festival",
            "month",
            (
                "the great fair of {n} is held in {v}",
                "dancers celebrate in the squares of {n} every {v}",
                "lanterns are lit for the festival of {n} in {v}",
                "{n} keeps its holy week in {v}",
                "drums are heard in {n} each {v}",
            ),
            (
                "when is the festival of {n}",
                "in what season does {n} celebrate",
                "what is the date of the carnival of {n}",
                "when does {n} hold its fair",
                "at what time of year are the festivities of {n}",
            ),
        ),
        Relation(
            "flag",
            "animal",
            (
                "the arms of {n} show a {v}",
                "a {v} stands on the banner of {n}",
                "a carved animal guards the gate of {n}, a {v}",
                "the flag and the coins of {n} bore a {v}",
                "the shield of {n} carries a {v}",
            ),
            (
                "which animal is on the flag of {n}",
                "what beast is the emblem of {n}",
                "what is the heraldic symbol of {n}",
                "which creature stands for {n}",
                "what is pictured on the arms of {n}",
            ),
        ),
    ),
)

COMPANY = Kind(
    "company",
    (
        Relation(
            "director",
            "person",
            (
                "{n} is led by {v}",
                "{v} took the chair of {n}",
                "the executive orders at {n} come from {v}",
                "{v} signs the letters of {n} as director",
                "the shareholders of {n} trust {v}",
            ),
            (
                "who is the director of {n}",
                "who leads {n}",
                "who runs {n}",
                "what is the name of the chief executive of {n}",
                "who is the boss of {n}",
            ),
        ),
        Relation(
            "goods",
            "product",
            (
                "{n} makes {v}",
                "the main goods of {n} are {v}",
                "customers order {v} from {n}",
                "{v} of {n} are sold abroad",
                "crates of {v} leave {n} every day",
            ),
            (
                "what does {n} make",
                "what is the product of {n}",
                "which goods does {n} manufacture",
                "what can one buy from {n}",
                "what is produced at {n}",
            ),
        ),
        Relation(
            "headquarters",
            "place",
            (
                "the seat of {n} is in {v}",
                "the offices of {n} overlook the market of {v}",
                "the headquarters of {n} are in {v}",
                "{n} rents a tall house in {v}",
                "letters for {n} are sent to {v}",
            ),
            (
                "where is the seat of {n}",
                "where does {n} have its headquarters",
                "in which city is {n} based",
                "what is the location of {n}",
                "where can {n} be found",
            ),
        ),
        Relation(
            "foundation",
            "year",
            (
                "{n} opened its books in {v}",
                "the first contract of {n} is dated {v}",
                "{n} was registered in {v}",
                "the year on the door of {n} is {v}",
                "three partners started {n} in {v}",
            ),
            (
                "when was {n} registered",
                "in what year did {n} start",
                "how old is {n}",
                "what is the foundation date of {n}",
                "when did {n} come into being",
            ),
        ),
        Relation(
            "staff",
            "number",
            (
                "{n} pays {v} workers",
                "{v} hands are on the lists of {n}",
                "the staff of {n} counts {v} people",
                "{v} employees pass the gates of {n}",
                "{n} feeds {v} at its long tables",
            ),
            (
                "how many workers does {n} have",
                "how large is the staff of {n}",
                "what is the number of employees of {n}",
                "how many are employed at {n}",
                "what is the size of {n}",
            ),
        ),
        Relation(
            "owner",
            "house",
            (
                "{n} belongs to {v}",
                "all shares of {n} lie with {v}",
                "{v} bought {n} after the war",
                "the owner of {n} is {v}",
                "{n} passed into the hands of {v}",
            ),
            (
                "who owns {n}",
                "to whom does {n} belong",
                "what is the parent of {n}",
                "which owner controls {n}",
                "who acquired {n}",
            ),
        ),
    ),
)

SHIP = Kind(
    "ship",
    (
        Relation(
            "captain",
            "person",
            (
                "{v} was captain of {n}",
                "the log of {n} was kept by {v}",
                "the crew of {n} obeyed {v}",
                "{v} steered {n} through the straits",
                "{n} was commanded by {v}",
            ),
            (
                "who was the captain of {n}",
                "who commanded {n}",
                "under which skipper did {n} go to sea",
                "who was the master of {n}",
                "which officer was in charge of {n}",
            ),
        ),
        Relation(
            "freight",
            "cargo",
            (
                "{n} was laden with {v}",
                "the freight of {n} was {v}",
                "{n} brought {v} across the sea",
                "sacks and barrels of {v} were stowed in {n}",
                "dealers in {v} chartered {n}",
            ),
            (
                "what cargo did {n} carry",
                "what was {n} laden with",
                "what freight was on board {n}",
                "which wares did {n} transport",
                "what did {n} haul",
            ),
        ),
        Relation(
            "shipyard",
            "place",
            (
                "{n} was built at {v}",
                "the keel of {n} was laid in {v}",
                "carpenters of {v} worked two winters on {n}",
                "{n} was launched at {v}",
                "the ribs of {n} are oak from the yard of {v}",
            ),
            (
                "where was {n} built",
                "in which shipyard was {n} made",
                "what is the birthplace of {n}",
                "where was {n} launched",
                "where was {n} constructed",
            ),
        ),
        Relation(
            "wreck",
            "year",
            (
                "{n} sank in {v}",
                "a storm made a wreck of {n} in {v}",
                "{n} broke on the rocks in {v}",
                "{n} was lost with all hands in {v}",
                "in {v} the sea closed over {n}",
            ),
            (
                "when did {n} sink",
                "in what year was {n} lost",
                "what was the date of the wreck of {n}",
                "when did {n} go down",
                "when did {n} perish",
            ),
        ),
        Relation(
            "length",
            "number",
            (
                "{n} measured {v} feet",
                "from bow to stern {n} had {v} feet",
                "{v} feet of deck made {n} hard to turn",
                "a dock was dug for the length of {n}, {v} feet",
                "{n} was {v} feet long",
            ),
            (
                "how long was {n}",
                "what was the length of {n}",
                "how many feet did {n} measure",
                "what were the dimensions of {n}",
                "how big was {n}",
            ),
        ),
        Relation(
            "home port",
            "harbour",
            (
                "the home port of {n} was {v}",
                "between voyages {n} lay in the harbour of {v}",
                "{n} was moored for the winter in {v}",
                "families at {v} waited for {n}",
                "{n} flew the colours of {v}",
            ),
            (
                "what was the home port of {n}",
                "to which harbour did {n} belong",
                "where was {n} moored",
                "where did {n} anchor when at rest",
                "from which haven did {n} sail",
            ),
        ),
    ),
)

KINDS = (TOWN, COMPANY, SHIP)

ASIDES = (
    "Old letters repeat it.",
    "The archive keeps a longer report, written by a clerk who made the voyage twice.",
    "Children learn it at school.",
    "Nobody can say how that began, and few ask.",
    "That was long a matter for the courts.",
    "It was once much discussed, and is nearly forgotten today.",
    "The keeper of the inn still has the papers.",
    "Who wrote that was not handed down.",
    "Some find it hard to believe.",
    "The market women like to gossip about it.",
    "A stone by the road recalls it.",
    "A traveller from {o} wrote it down.",
    "The {t} of {o} is described in another volume.",
    "More has been written about the {t} of {o}.",
    "About its {t} the sources disagree.",
    "A chapter on its {t} was torn out.",
)

WRAPS = ("{q}", "{q} exactly", "please tell me {q}", "does anybody know {q}", "{q} according to the records")

WORDS: dict[str, tuple[str, ...]] = {
    "dish": ("smoked eel", "barley soup", "plum dumplings", "pickled herring", "goat cheese", "chestnut bread", "pepper stew", "lamb pie",
             "honey cake", "roast goose", "mushroom pancakes", "fig jam", "onion tart", "salted cod", "bean porridge", "walnut rolls",
             "crayfish broth", "cabbage rolls", "saffron rice", "venison ham"),
    "trade": ("salt mining", "glass blowing", "silk weaving", "rope making", "bell casting", "paper milling", "bee keeping", "horse breeding",
              "amber cutting", "copper smelting", "book printing", "wine growing", "boat building", "clock making", "felt dyeing",
              "pearl diving", "tile burning", "sheep herding", "lace making", "timber rafting"),
    "month": tuple(f"{part} {month}" for month in ("January", "February", "March", "April", "May", "June", "July", "August", "September",
                                                    "October", "November", "December") for part in ("early", "late")),
    "animal": ("black bear", "red fox", "white heron", "golden lion", "silver carp", "grey wolf", "green lizard", "brown owl", "blue peacock",
               "red stag", "white horse", "black raven", "golden bee", "grey badger", "silver swan", "horned ram", "crowned eagle",
               "spotted lynx", "leaping hare", "winged bull"),
    "product": ("brass lamps", "steel springs", "wool carpets", "garden tools", "glass beads", "leather boots", "wax candles", "oak barrels",
                "tin toys", "linen sails", "copper kettles", "church organs", "sewing needles", "paper fans", "iron stoves", "tea cups",
                "fishing nets", "felt hats", "pocket watches", "straw baskets"),
    "cargo": ("black pepper", "raw cotton", "cane sugar", "green tea", "dried dates", "whale oil", "cedar planks", "blue indigo", "river ice",
              "tobacco leaves", "sea coal", "white marble", "olive oil", "roasted coffee", "rock salt", "wild rubber", "linseed", "cork bark",
              "coconut fibre", "cloves"),
}  # fmt: skip

ONSETS = ("b", "br", "c", "d", "dr", "f", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "w", "z", "th")
RHYMES = ("a", "an", "ar", "e", "el", "en", "i", "il", "in", "o", "on", "or", "u", "um", "ai")
ENDS = ("bar", "dale", "dor", "fen", "gard", "holm", "kin", "lin", "mar", "mond", "nay", "ric", "sey", "stan", "ton", "vale", "wick", "zar")
