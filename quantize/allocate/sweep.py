"""How much each weight of a model matters: the diagonal of the Fisher information, by one backward
pass, a layer at a time. Runs in a child process.

For a small change d of the weights the mean KL divergence of the next token's distribution is
1/2 d' H d, where H is the Fisher information: the mean square of the gradient of the log-likelihood
of labels *drawn from the model itself* (J. Martens, "New insights and perspectives on the natural
gradient method", JMLR 21, 2020). Of H the diagonal is taken, a window of text at a time:
F = sum over the windows of G^2, with G the gradient of the window's summed log-likelihood.

One layer's weights, gradients and F are held in single precision, no more. Hidden states between
the layers and gradients at the input of the last layer that is done lie on the disk: a sweep that
was killed resumes below it.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from quantize.arrays import Floats
from quantize.children import report_progress
from quantize.errors import SourceError
from quantize.source.shapes import gguf_name

Rounding = dict[int, float]
Ids = Sequence[int]
Args = tuple[Any, ...]
Named = dict[str, Any]
_Call = tuple[Args, Named]  # of a layer, beside the hidden states

_SEED = 20260101
_LEVELS = 127  # on each side of zero, of activations in 8 bits
BLOCKS = (32, 256)  # inputs that share a scale: of llama.cpp's plain types, and of its K types
ROW = 0  # all inputs of a product share one: of products of integers
_WATCHED = (*BLOCKS, ROW)
_ROWS = 8192  # of the output, whose gradients are held together
_TRANSPOSED = re.compile(r"c_(?:attn|proj|fc)\.weight$")  # GPT-2's family: [in, out]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One tensor of weights, with its name in GGUF.

    ``weight`` and ``fisher`` are [matrices, out, in]; an ordinary tensor is one matrix, a layer's
    experts are many. ``activations`` has, by the length of a block, the divergence in nats, summed
    over the tokens, of inputs rounded to 8 bits: what kernels for quantized weights add.
    """

    name: str
    weight: Floats
    fisher: Floats
    activations: Rounding = field(default_factory=dict)


Rate = Callable[[Matrix], None]


def sweep(
    network: Any,
    windows: Sequence[Ids],
    folder: Path,
    done: int,
    rate: Rate,
    finished: Callable[[int], None],
) -> None:
    """Hand every matrix of ``network``, in single precision, to ``rate``, from the output down.

    ``windows`` are ids, all of one length. ``finished`` is called with the number of parts that are
    done; what it has been called with is given as ``done`` by the run that resumes in ``folder``.
    Raises SourceError for a network that is no stack of layers.
    """
    work = _Sweep(network, windows, folder, rate)
    parts = work.parts
    calls = work.forward(resumed=done > 0)
    if not done:
        finished(1)
    for part in range(max(done, 1), parts - 1):
        at = parts - 2 - part
        report_progress(part, parts, "layers")
        work.backward(at, part, calls[at])
        finished(part + 1)
    if done < parts:
        work.embedding()
        finished(parts)
    report_progress(parts, parts, "layers")


class _Sweep:
    """The network with what is done to it; tensors lie in ``folder`` between two parts."""

    def __init__(self, network: Any, windows: Sequence[Ids], folder: Path, rate: Rate) -> None:
        for p in network.parameters():
            p.requires_grad_(False)
        self.network, self.windows, self.folder, self.rate = network, windows, folder, rate
        self.layers = layers_of(network)
        self.parts = len(self.layers) + 2
        self.head, self.table = network.get_output_embeddings(), network.get_input_embeddings()
        self.tied = self.head.weight is self.table.weight

    def save(self, kind: str, part: int, window: int, tensor: Any) -> None:
        """Put it on the disk."""
        np.save(self.folder / f"{kind}-{part}-{window}.npy", tensor.detach().float().numpy())

    def load(self, kind: str, part: int, window: int) -> Any:
        """Read what was saved so."""
        import torch

        return torch.from_numpy(np.load(self.folder / f"{kind}-{part}-{window}.npy"))

    def forward(self, *, resumed: bool) -> list[_Call]:
        """Save what goes into each layer, go back through the output at once, and return how each
        layer is called. What is ``resumed`` has handed out the output's matrix before."""
        import torch

        head, layers, tied = self.head, self.layers, self.tied
        calls: list[Any] = [None] * len(layers)
        generator = torch.Generator().manual_seed(_SEED)
        fisher = torch.zeros(head.weight.shape)
        rounding: Rounding = {}

        def note(at: int, window: int, args: Args, kwargs: Named) -> Any:
            hidden, rest, named = inputs_of(args, kwargs)
            self.save("input", at, window, hidden[0])
            calls[at] = rest, named
            return (hidden.detach(), *rest), named

        def cut(output: Any) -> Any:
            """The output of the last layer, from which the gradients go back."""
            hidden = output[0] if isinstance(output, tuple) else output
            leaf = hidden.detach().requires_grad_(True)
            leaves.append(leaf)
            return (leaf, *output[1:]) if isinstance(output, tuple) else leaf

        with single(head.parameters()), torch.enable_grad():
            for w, ids in enumerate(self.windows):
                report_progress(w / len(self.windows), self.parts, "layers")
                leaves: list[Any] = []
                with contextlib.ExitStack() as hooks:
                    for at, layer in enumerate(layers):
                        hook = layer.register_forward_pre_hook(
                            lambda _m, args, kwargs, at=at, w=w: note(at, w, args, kwargs),
                            with_kwargs=True,
                        )
                        hooks.callback(hook.remove)
                    last = layers[-1].register_forward_hook(lambda _m, _i, o: cut(o))
                    hooks.callback(last.remove)
                    _watch(hooks, head, rounding)
                    gathered = _gather(hooks, head, fisher, _rows(ids) if tied else [])
                    logits = self.network(torch.tensor([ids]), use_cache=False).logits[0].float()
                drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)[:, 0]
                torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
                self.save("gradient", 1, w, leaves[0].grad[0])
                if tied:  # these rows are looked up too, and have one gradient of both
                    self.save("rows", 0, w, gathered[0])
            if tied:
                self.save("head", 0, 0, fisher)
                sums = [rounding.get(block, 0.0) for block in _WATCHED]
                self.save("rounding", 0, 0, torch.tensor(sums))
            elif not resumed:
                self.rate(_matrix("output.weight", head.weight, fisher, rounding))
        return calls

    def backward(self, at: int, part: int, call: _Call) -> None:
        """One layer: from the gradients at its output to those at its input, with all its
        matrices."""
        import torch

        layer, (rest, named) = self.layers[at], call
        roundings: dict[str, Rounding] = {}
        with single(layer.parameters()), torch.enable_grad(), contextlib.ExitStack() as hooks:
            weights = {name: p for name, p in layer.named_parameters() if p.ndim > 1}
            fisher = {name: torch.zeros(p.shape) for name, p in weights.items()}
            for p in weights.values():
                p.requires_grad_(True)
            for name, module in layer.named_modules():
                if isinstance(module, torch.nn.Linear):
                    _watch(hooks, module, roundings.setdefault(f"{name}.weight", {}))
            for w in range(len(self.windows)):
                hidden = self.load("input", at, w)[None].requires_grad_(True)
                output = layer(hidden, *rest, **named)
                output = output[0] if isinstance(output, tuple) else output
                output.backward(self.load("gradient", part, w)[None])
                self.save("gradient", part + 1, w, hidden.grad[0])
                for name, p in weights.items():
                    if p.grad is not None:  # an expert that nothing was sent to has none
                        fisher[name].addcmul_(p.grad, p.grad)
                        p.grad = None
            for name, p in weights.items():
                p.requires_grad_(False)
                whole = f"model.layers.{at}.{name}"
                for matrix in _split(whole, p, fisher.pop(name), roundings.get(name, {})):
                    self.rate(matrix)
        for path in self.folder.glob(f"gradient-{part}-*.npy"):
            path.unlink()

    def embedding(self) -> None:
        """Embedding table; where the output has the same matrix, both uses together."""
        import torch

        weight, tied, last = self.table.weight, self.tied, self.parts - 1
        fisher = self.load("head", 0, 0) if tied else torch.zeros(weight.shape)
        with single(self.table.parameters()), torch.enable_grad():
            for w, ids in enumerate(self.windows):
                got = self.looked_up(ids, self.load("gradient", last, w))
                head = self.load("rows", 0, w) if tied else torch.zeros(())
                fisher[_rows(ids)] += (head + got).square() - head.square()
            sums = self.load("rounding", 0, 0).tolist() if tied else []
            rounding = dict(zip(_WATCHED, sums, strict=False))
            self.rate(_matrix("token_embd.weight", weight, fisher, rounding))

    def looked_up(self, ids: Ids, gradient: Any) -> Any:
        """The gradient of the rows of the embedding that are looked up, from that of the first
        layer's input."""
        import torch

        weight, self.table.sparse = self.table.weight, True  # no zeros for all the others

        def stop(_module: Any, args: Args, kwargs: Named) -> None:
            raise Reached(inputs_of(args, kwargs)[0])

        hook = self.layers[0].register_forward_pre_hook(stop, with_kwargs=True)
        weight.requires_grad_(True)
        try:
            self.network(torch.tensor([ids]), use_cache=False)
        except Reached as reached:
            reached.args[0].backward(gradient[None])
        finally:
            hook.remove()
            weight.requires_grad_(False)
            self.table.sparse = False
        found, weight.grad = weight.grad, None
        rows = torch.tensor(_rows(ids))
        if not found.is_sparse:
            return found[rows]
        found = found.coalesce()
        whole = torch.zeros(len(rows), weight.shape[1])  # the token that fills up has no gradient
        whole[torch.searchsorted(rows, found.indices()[0])] = found.values()
        return whole


class Reached(Exception):
    """The first layer, whose input is all that is wanted: its argument."""


def inputs_of(args: Args, kwargs: Named) -> tuple[Any, Args, Any]:
    """The hidden states that a layer is called with, and the rest."""
    named = dict(kwargs)
    hidden, *rest = args or (named.pop("hidden_states"),)
    return hidden, tuple(rest), named


def _rows(ids: Ids) -> list[int]:
    return sorted(set(ids))


def layers_of(network: Any) -> Any:
    """The longest list of modules of one kind: the blocks."""
    import torch

    lists = [
        m
        for m in network.modules()
        if isinstance(m, torch.nn.ModuleList) and len({type(layer) for layer in m}) == 1
    ]
    count = network.config.get_text_config().num_hidden_layers
    found = next((m for m in lists if len(m) == count), None)
    if found is None or network.get_output_embeddings() is None:
        raise SourceError(
            f"{type(network).__name__} is not a plain stack of {count} layers, which could be run"
            " one by one: build a recipe by name, without --gptq"
        )
    return found


@contextlib.contextmanager
def single(parameters: Iterable[Any]) -> Iterator[None]:
    """Hold these weights in single precision during the block."""
    held = [(p, p.data) for p in parameters if p.is_floating_point()]
    for p, data in held:
        p.data = data.float()
    try:
        yield
    finally:
        for p, data in held:
            p.data = data


def _on_the_way_back(
    hooks: contextlib.ExitStack, module: Any, add: Callable[[Any, Any], None]
) -> None:
    """Have ``add`` called with the inputs [rows, in] of a linear ``module`` and the gradient of its
    output [rows, out], each time it is gone back through."""

    def forward(_module: Any, args: Args, output: Any) -> None:
        inputs = args[0].detach().flatten(0, -2)
        if output.requires_grad:
            output.register_hook(lambda gradient: add(inputs, gradient.flatten(0, -2)))

    hooks.callback(module.register_forward_hook(forward).remove)


def _watch(hooks: contextlib.ExitStack, module: Any, into: Rounding) -> None:
    """Add to ``into`` what 8-bit inputs of a linear ``module`` cost."""

    def add(inputs: Any, gradient: Any) -> None:
        towards = gradient @ module.weight.detach()  # of the inputs
        for block in _WATCHED:
            moved = _rounded(inputs, block or inputs.shape[1]) - inputs
            # By tokens: the roundings of two of them have nothing to do with each other.
            cost = 0.5 * (towards * moved).sum(dim=1).square().sum()
            into[block] = into.get(block, 0.0) + float(cost)

    _on_the_way_back(hooks, module, add)


def _gather(hooks: contextlib.ExitStack, head: Any, fisher: Any, looked: Ids) -> list[Any]:
    """Add the squared gradient of the output's weights to ``fisher``, some rows at a time: it is as
    large as they are. Its rows ``looked`` go into the list."""
    found: list[Any] = []

    def add(inputs: Any, gradient: Any) -> None:
        for at in range(0, len(fisher), _ROWS):
            part = gradient[:, at : at + _ROWS].T @ inputs
            fisher[at : at + _ROWS].addcmul_(part, part)
        found.append(gradient[:, looked].T @ inputs)

    _on_the_way_back(hooks, head, add)
    return found


def _rounded(inputs: Any, block: int) -> Any:
    """Inputs [tokens, in] in 8 bits, with one scale a block; the last one may be shorter."""
    import torch

    width = inputs.shape[1]
    groups = torch.nn.functional.pad(inputs, (0, -width % block)).unflatten(1, (-1, block))
    scale = groups.abs().amax(dim=2, keepdim=True).clamp_min(1e-30) / _LEVELS
    return ((groups / scale).round() * scale).flatten(1)[:, :width]


def _split(name: str, weight: Any, fisher: Any, rounding: Rounding) -> Iterator[Matrix]:
    """A parameter as the matrices that GGUF has of it."""
    whole = name if name.endswith(".weight") else f"{name}.weight"
    known = gguf_name(whole)
    if _TRANSPOSED.search(whole):
        weight, fisher = weight.T, fisher.T
    if weight.ndim == 3 and "gate_up" in name:  # one after the other, of each expert
        half = weight.shape[1] // 2
        gate = known.replace("ffn_up", "ffn_gate")
        yield _matrix(gate, weight[:, :half], fisher[:, :half], rounding)
        yield _matrix(known, weight[:, half:], fisher[:, half:], rounding)
        return
    yield _matrix(known, weight, fisher, rounding)


def _matrix(name: str, weight: Any, fisher: Any, rounding: Rounding) -> Matrix:
    def array(tensor: Any) -> Floats:
        shape = (-1, *tensor.shape[-2:])
        return np.ascontiguousarray(tensor.detach().numpy().reshape(shape))

    return Matrix(name, array(weight), array(fisher), rounding)
