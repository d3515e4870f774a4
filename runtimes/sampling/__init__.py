"""Choose the next token of every row at once, on any runner's logits.

Order of the steps:

1. Tokens that the row's constraint does not allow are banned.
2. ``logit_bias`` is added.
3. Below ``min_tokens`` the end-of-sequence tokens are banned, unless the constraint wants the end.
4. Repetition penalty, then frequency and presence penalties. Repetition counts prompt and output
   tokens (CTRL, arXiv:1909.05858); the others count output tokens only (OpenAI's definition).
5. ``temperature``; 0 takes the likeliest token and ends here.
6. ``top_k``, then ``top_p`` of what is left, then ``min_p`` of the likeliest.
7. One draw.

Steps 1 to 5 are those of vLLM (``vllm/v1/sample/sampler.py``), 5 and 6 those of transformers
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
