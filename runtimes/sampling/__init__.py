"""Choose the next token of every row at once, on any runner's logits.

``runtimes.request.SamplingParams`` has the order of the steps. Steps 1 to 5 are those of vLLM
(``vllm/v1/sample/sampler.py``), 5 and 6 those of transformers
(``GenerationMixin._get_logits_processor``, 5.23). vLLM has min-p before top-k and top-p. The
default chain of llama.cpp (``common/common.h``) has the temperature last: its top-p and min-p see
the distribution at temperature 1. Equal logits rank by ascending id; transformers keeps all that
equal the last of top-k.

A draw takes one uniform number, a hash of (seed, sample, index of the token), and goes through the
kept tokens in the order of their ids to the first at which their summed weights exceed that share
of the total. A row's token depends on its own logits, parameters and seed only, not on which rows
share its batch.

Log-probabilities are those of the raw logits, before step 1.

Where a runner gives only the largest logits of a row (``runtimes.runner.TopKLogits``), the
rest of the steps and their results are the same; only which of several equal logits at the very end
of top-k are kept is the runner's choice.
"""

from runtimes.sampling.sampler import Sampled, sample
from runtimes.sampling.state import SamplerState

__all__ = ["Sampled", "SamplerState", "sample"]
