"""Limits: a file that is further from its original than its recipe allows is not published."""

import math

from quantize.errors import QualityError
from quantize.manifest import Fidelity
from quantize.recipes.recipe import Recipe


def require_quality(recipe: Recipe, fidelity: Fidelity) -> None:
    """Raise QualityError when a file is worse than ``recipe.limits``, or gives no probabilities.

    A recipe without limits takes any finite figures.
    """
    problems = []
    if not (math.isfinite(fidelity.kl_mean) and math.isfinite(fidelity.perplexity.value)):
        problems.append("it gives no finite probabilities")
    elif (limits := recipe.limits) is not None:
        if fidelity.kl_mean > limits.kl_mean:
            problems.append(
                f"mean KL divergence {fidelity.kl_mean:.4g} (error {fidelity.kl_error:.2g}), the"
                f" limit is {limits.kl_mean:.4g}"
            )
        if fidelity.same_top < limits.same_top:
            problems.append(
                f"the same most likely token at {fidelity.same_top:.1%} of the positions, the limit"
                f" is {limits.same_top:.1%}"
            )
    if not problems:
        return
    of = fidelity.perplexity
    raise QualityError(
        f"{recipe.name} is too far from the float model: {'; '.join(problems)}.\n"
        f"Measured on {of.tokens:,} tokens of the {of.text} (perplexity {of.value:.4g}).\n"
        "Nothing was published for it. If the text does not suit the model (another language, say),"
        " measure with one that does: --measure-text FILE. Otherwise choose a recipe with more"
        f" bits than {recipe.name}, for GGUF an importance matrix (--imatrix FILE), or publish it"
        " all the same with --no-gates"
    )
