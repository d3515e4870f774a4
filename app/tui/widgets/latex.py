"""The formulas that models write most, as plain text: what is not known stays as it is."""

import re
import unicodedata

_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi "
    "chi psi omega"
).split()
_PAIRS = (
    "times \u00d7 cdot · div ÷ pm ± mp \u2213 circ ° degree ° infty ∞ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ "
    "neq ≠ approx ≈ equiv ≡ propto ∝ ll ≪ gg ≫ sum ∑ prod ∏ int ∫ partial ∂ nabla ∇ in ∈ notin ∉ "
    "subset ⊂ subseteq ⊆ cup \u222a cap ∩ emptyset ∅ forall ∀ exists ∃ neg ¬ land ∧ lor \u2228 "
    "to → rightarrow → leftarrow ← Rightarrow ⇒ implies ⇒ iff ⇔ ldots … dots … cdots ⋯ perp ⊥"
).split()
_SIGNS = dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True))
for _name in _GREEK:
    _letter = unicodedata.lookup(f"GREEK SMALL LETTER {_name.upper().replace('LAMBDA', 'LAMDA')}")
    _SIGNS |= {_name: _letter, _name.title(): _letter.upper()}
_RAISED = str.maketrans("0123456789+-=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ")
_LOWERED = str.maketrans("0123456789+-=()aeijkmnoprtx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑᵢⱼₖₘₙₒₚᵣₜₓ")
_GROUP = r"\{([^{}]*)\}"  # without groups in it: those have become text before
_FRACTION = re.compile(rf"\\[dt]?frac\s*{_GROUP}\s*{_GROUP}")
_ROOT = re.compile(rf"\\sqrt\s*{_GROUP}")
_PLAIN = re.compile(rf"\\(?:text|mathrm|mathbf|mathit|operatorname|boxed)\s*{_GROUP}")
_SCRIPT = re.compile(r"([\^_])(?:\{([^{}\\]*)\}|([^\s{}\\^_(]))")
_NAME = re.compile(r"\\([A-Za-z]+)")
_DROPPED = re.compile(r"\\(?:left|right|big|Big|displaystyle|limits)(?![A-Za-z])\.?|\\[,;:! ]|[&]")


def plain(formula: str) -> str:
    """``formula`` without its commands, as far as they are known."""
    text = _DROPPED.sub("", formula).replace("\\\\", "; ")
    before = None
    while before != text:  # from the innermost group outwards
        before = text
        text = _SCRIPT.sub(_script, text)
        text = _PLAIN.sub(r"\1", text)
        text = _ROOT.sub(lambda found: f"√{_operand(found[1])}", text)
        text = _FRACTION.sub(lambda found: f"{_operand(found[1])}/{_operand(found[2])}", text)
        text = _NAME.sub(lambda found: _SIGNS.get(found[1], found[0]), text)
    return re.sub(r"\\([{}%$#_|])", r"\1", " ".join(text.split()))


def _operand(text: str) -> str:
    """In brackets where it is more than one number, name or sign."""
    text = text.strip()
    return text if re.fullmatch(r"\d+(\.\d+)?|[^\W\d]+", text) else f"({text})"


def _script(found: re.Match[str]) -> str:
    """Raised or lowered, where there are such characters for all of it."""
    mark, text = found[1], (found[2] if found[2] is not None else found[3])
    table = _RAISED if mark == "^" else _LOWERED
    if all(ord(one) in table for one in text):
        return text.translate(table)
    return f"{mark}{text}" if len(text) == 1 else f"{mark}({text})"
