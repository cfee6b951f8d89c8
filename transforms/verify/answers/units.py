"""Units behind an answer. They are told from mathematics, never converted."""

from collections.abc import Sequence

from transforms.verify.answers.tokens import Token

_SPELLINGS = {
    "meter": "m meter metre meters metres", "centimeter": "cm centimeter centimeters centimetre centimetres",
    "millimeter": "mm millimeter millimeters", "kilometer": "km kilometer kilometers kilometre kilometres",
    "inch": "inch inches", "foot": "ft foot feet", "yard": "yd yard yards", "mile": "mi mile miles",
    "gram": "g gram grams", "kilogram": "kg kilogram kilograms", "pound": "lb lbs pound pounds",
    "ounce": "oz ounce ounces", "liter": "L liter liters litre litres", "milliliter": "ml mL milliliter milliliters",
    "gallon": "gallon gallons", "second": "s sec second seconds", "minute": "min minute minutes",
    "hour": "h hr hrs hour hours", "day": "day days", "week": "week weeks", "month": "month months",
    "year": "year years", "mph": "mph", "unit": "unit units", "dollar": "dollar dollars", "cent": "cent cents",
    "degree": "degree degrees", "point": "point points",
}  # fmt: skip
UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}
"""Every spelling of a unit that is known, and the unit."""
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}


def parted(tokens: Sequence[Token]) -> tuple[Sequence[Token], str | None]:
    """The tokens without a unit at the end (or a dollar sign at the start), and the unit in one spelling."""
    if tokens[0].kind == "$" or [token.kind for token in tokens[:2]] == ["-", "$"]:
        return [token for token in tokens if token.kind != "$"], "dollar"
    for start in range(1, len(tokens)):
        first = tokens[start]
        roman = first.kind == "text" or (first.kind in ("word", "function") and len(first.text) > 1)
        if roman and tokens[start - 1].kind in ("number", "symbol", ")", "}", "function", r"\}", "!", "]"):
            unit = _unit(tokens[start:])
            if unit == "degree":
                return [*tokens[:start], Token("degree", r"^{\circ}")], None
            if unit is not None:
                return tokens[:start], unit
    return tokens, None


def _unit(tokens: Sequence[Token]) -> str | None:
    """`cm`, `square cm`, `cm^2`, `cm^{2}`, `km/h`, `km per hour`: the unit; None for anything else."""
    text = "".join(f" {token.text} " if token.text[0].isalpha() else token.text for token in tokens)
    parts = text.replace("per ", "/").replace("{", "").replace("}", "").replace(" ^", "^").split("/")
    found = [_one(part.split()) for part in parts]
    names = [name for name in found if name is not None]
    return "/".join(names) if len(names) == len(found) <= 2 else None


def _one(words: list[str]) -> str | None:
    power = ""
    if len(words) == 2 and words[0].strip(".") in _POWERS:
        power, words = _POWERS[words[0].strip(".")], words[1:]
    if len(words) != 1:
        return None
    name, caret, digit = words[0].partition("^")
    if caret and (power or digit not in ("2", "3")):
        return None
    unit = UNITS.get(name) or UNITS.get(name.lower())
    return None if unit is None else unit + (power or caret + digit)
