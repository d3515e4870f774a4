"""Grammars of constraints: bounded, and compiled first in a process of their own.

A JSON schema, a regular expression, choices or a grammar may come from anybody, and llguidance is
native code: some texts overflow its stack, others take it minutes. So `grammar_of` has a child
process compile each once (`python -m runtimes.grammars`), with less stack than an engine has, a
bound on its memory and one on time. Where the child dies or is late, one request is refused, and
the refusal is kept like a result. What it has compiled is safe to compile in an engine.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from runtimes.checks import check_room, grammar_text, refused
from runtimes.errors import IngotError, RequestError, WorkerError
from runtimes.machine.linechild import (
    LineChild,
    LineChildError,
    exchange,
    limit_child,
    limit_cpu,
)
from runtimes.machine.processes import ending
from runtimes.request import Constraint, Request, SamplingParams
from runtimes.untrusted import Bounds, excess

log = logging.getLogger(__name__)

# What a constraint may be, whoever gives it. A choice is short, so that there may be many.
MOST_CHARACTERS = {"choices": 2**20, "tools": 2**20}  # of its source
MOST_OTHER_CHARACTERS = 2**18
MOST_CHOICES = 2**14
SCHEMA = Bounds(depth=64, values=50_000, characters=2**18)
MOST_RULES = 2048  # of a grammar, or definitions and references of a schema
MOST_CHAIN = 256  # of rules or definitions that need each other in a row

# For one grammar: seconds of a processor, and by the clock, which a busy machine may take. A schema
# of a thousand properties takes less than one.
LIMIT_CPU_S, LIMIT_S = 3, 30.0
STACK = 64 * 2**20  # bytes, of threads on which an engine compiles and follows grammars
_CHILD_STACK = STACK // 4  # what passes there passes in an engine
_CHILD_MEMORY = 4 * 2**30  # bytes of address space; a quarter of it is stack and libraries
# A compiler is soon free again, unless somebody keeps it busy on purpose: beyond a few threads,
# those that wait for one give up after so many seconds.
_CHILDREN, _MOST_WAITING, _PATIENCE_S = 2, 16, 2.0
_KEPT_CHARACTERS, _MOST_KEPT = 2**23, 2**20  # of all results, and of one


def check_params(params: SamplingParams, vocab_size: int) -> str | None:
    """The grammar of their constraint, if they have one.

    Raises RequestError for parameters that fit no model with ``vocab_size`` tokens.
    """
    for token, _ in params.logit_bias:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"logit_bias names the token id {token}; this model has ids 0..{vocab_size - 1}"
            )
    return grammar_of(params.constraint) if params.constraint is not None else None


def check_request(request: Request, context: int, vocab_size: int) -> str | None:
    """The grammar of its constraint, if it has one. Raises RequestError for a request that an
    engine of this size cannot serve.
    """
    check_room(request, context)
    if min(request.prompt) < 0 or max(request.prompt) >= vocab_size:
        raise RequestError(f"the prompt has a token id outside 0..{vocab_size - 1}")
    return check_params(request.params, vocab_size)


def grammar_of(constraint: Constraint) -> str:
    """The grammar for llguidance; blocks while it is compiled, from any thread.

    Raises RequestError for a constraint that means nothing, that llguidance cannot follow, or that
    is too large, too deep or too slow to compile; WorkerError while too many wait already.
    """
    return _COMPILERS.grammar_of(constraint)


@contextlib.contextmanager
def deep_stacks() -> Iterator[None]:
    """Threads that are started within have the stack that compiled grammars may need."""
    before = threading.stack_size(STACK)
    try:
        yield
    finally:
        threading.stack_size(before)


class _Compilers:
    """Child processes, started when there is something to compile, and what they found."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._idle: list[LineChild] = []
        self._running: set[Constraint] = set()
        self._waiting = self._size = 0
        self._found: OrderedDict[Constraint, str | RequestError] = OrderedDict()

    def grammar_of(self, constraint: Constraint) -> str:
        most = MOST_CHARACTERS.get(constraint.kind, MOST_OTHER_CHARACTERS)
        if len(constraint.source) > most:
            said = f"it has {len(constraint.source):,} characters, above {most:,}"
            raise refused(constraint, said)
        found = self._known(constraint) or self._compiled(constraint)
        if isinstance(found, RequestError):
            raise RequestError(str(found))  # another one: each has its own traceback
        return found

    def _known(self, constraint: Constraint) -> str | RequestError | None:
        """The result of a constraint, also of another thread, which is waited for. None: it is
        counted as running, and is this thread's to compile."""

        def ready() -> bool:
            compiling = constraint in self._running or len(self._running) >= _CHILDREN
            return constraint in self._found or not compiling

        with self._lock:
            if not ready():
                timeout = None if self._waiting < _MOST_WAITING else _PATIENCE_S
                self._waiting += 1
                try:
                    waited = self._lock.wait_for(ready, timeout)
                finally:
                    self._waiting -= 1
                if not waited:
                    raise WorkerError("too many constraints are being compiled: try again later")
            if constraint in self._found:
                self._found.move_to_end(constraint)
                return self._found[constraint]
            self._running.add(constraint)
            return None

    def _compiled(self, constraint: Constraint) -> str | RequestError:
        try:
            found = self._asked(constraint)
            self._keep(constraint, found)
            return found
        finally:
            with self._lock:
                self._running.discard(constraint)
                self._lock.notify_all()

    def _asked(self, constraint: Constraint) -> str | RequestError:
        """Have a child compile a constraint: its grammar, or the reason of a refusal, also where
        the child dies."""
        with self._lock:
            child = self._idle.pop() if self._idle else None
        child = child or _started()
        try:
            asked = [constraint.kind, constraint.source, LIMIT_CPU_S]
            good, said = child.ask(asked, LIMIT_S)
        except BaseException as error:  # Ctrl-C too: its answer would be taken for the next one's
            child.close()
            if not isinstance(error, LineChildError):
                raise
            why = f"the process that compiled it died ({ending(error.code)})"
            if error.why == "hung":
                why = f"it takes longer than {LIMIT_S:g} s to compile"
            elif ending(error.code) == "SIGXCPU":
                why = f"it takes more than {LIMIT_CPU_S} s of a processor to compile"
            log.warning("a %s was refused: %s", constraint.kind, why)
            return refused(constraint, why)
        with self._lock:
            self._idle.append(child)
        return str(said) if good else refused(constraint, str(said))

    def _keep(self, constraint: Constraint, found: str | RequestError) -> None:
        size = len(constraint.source) + len(str(found))
        if size > _MOST_KEPT:
            return
        with self._lock:
            if constraint not in self._found:
                self._found[constraint] = found
                self._size += size
            while self._size > _KEPT_CHARACTERS:
                old, value = self._found.popitem(last=False)
                self._size -= len(old.source) + len(str(value))


def _started() -> LineChild:
    try:
        return LineChild("runtimes.grammars", name="a compiler of grammars")
    except OSError as error:
        raise WorkerError(f"no process could be started for a grammar: {error}") from error


_COMPILERS = _Compilers()

# In the child


def _answer(kind: Any, source: str) -> tuple[bool, str]:
    """Whether a constraint can be compiled, and its grammar or what is wrong."""
    from llguidance import LLMatcher, LLTokenizer

    constraint = Constraint(kind, source)
    try:
        if wrong := _structure(constraint):
            return False, wrong
        grammar = grammar_text(constraint)
        wrong_there, said = LLMatcher.validate_grammar_with_warnings(grammar)
        if wrong_there:
            return False, str(said[0])
        # As an engine does it, with the vocabulary of 256 bytes: its first step as well.
        matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()
            if "NoExtensionBias" in matcher.get_error():
                return False, "there is no text that it allows"
        return True, grammar
    except RecursionError:
        return False, "it is nested too deeply"
    except (ValueError, IngotError) as error:
        return False, str(error)
    except MemoryError:
        return False, "it takes too much memory to compile"


def _structure(constraint: Constraint) -> str | None:
    """Describe the part of a source whose size or shape is beyond the bounds; None where llguidance
    may look at it."""
    kind, source = constraint.kind, constraint.source
    if kind == "json_schema":
        try:
            schema = json.loads(source)
        except ValueError:
            return None  # is told better by who reads it for its meaning
        if wrong := excess(schema, SCHEMA):
            return f"it {wrong}"
        return _too_many("definitions", _references(schema))
    if kind == "choices":
        choices = json.loads(source)
        if isinstance(choices, list) and len(choices) > MOST_CHOICES:
            return f"it has {len(choices):,} choices, above {MOST_CHOICES:,}"
    elif kind in ("grammar", "tools"):
        text = source if kind == "grammar" else json.loads(source)["grammar"]
        return _too_many("rules", _rules(text))
    return None


def _too_many(what: str, needs: Mapping[str, set[str]]) -> str | None:
    if len(needs) > MOST_RULES:
        return f"it has {len(needs):,} {what}, above {MOST_RULES:,}"
    longest = _longest_chain(needs)
    if longest > MOST_CHAIN:
        return f"{longest:,} of its {what} need each other in a row, above {MOST_CHAIN}"
    return None


def _longest_chain(needs: Mapping[str, set[str]]) -> int:
    """The longest way from name to needed name that a walk finds which enters none twice."""
    lengths: dict[str, int] = {}
    for first in needs:
        path = [] if first in lengths else [(first, iter(needs[first]))]
        open_ones, longest = {first}, [1]  # those on the way, and below each
        while path:
            below = next(
                (one for one in path[-1][1] if one in needs and one not in open_ones), None
            )
            if below is None:
                name, _ = path.pop()
                open_ones.discard(name)
                lengths[name] = length = longest.pop()
                if longest:
                    longest[-1] = max(longest[-1], length + 1)
            elif below in lengths:
                longest[-1] = max(longest[-1], lengths[below] + 1)
            else:
                open_ones.add(below)
                longest.append(1)
                path.append((below, iter(needs[below])))
    return max(lengths.values(), default=0)


def _references(schema: Any) -> dict[str, set[str]]:
    """Each place that a schema refers to, with the references within it."""
    found: dict[str, set[str]] = {"#": _within(schema)}
    waiting = [*found["#"]]
    while waiting and len(found) <= MOST_RULES:
        name = waiting.pop()
        if name not in found:
            found[name] = _within(_at(schema, name))
            waiting.extend(found[name])
    return found


def _within(schema: Any) -> set[str]:
    """References of a schema, without those of definitions that it brings."""
    found, waiting = set(), [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            if isinstance(one.get("$ref"), str):
                found.add(one["$ref"])
            waiting.extend(v for key, v in one.items() if key not in ("$defs", "definitions"))
        elif isinstance(one, list):
            waiting.extend(one)
    return found


def _at(schema: Any, pointer: str) -> Any:
    """Resolve a JSON pointer (RFC 6901); None where there is nothing, or elsewhere."""
    head, *parts = pointer.split("/")
    if head != "#":
        return None
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping):
            schema = schema.get(key)
        elif isinstance(schema, list) and key.isascii() and key.isdigit():
            schema = schema[int(key)] if int(key) < len(schema) else None
        else:
            return None
    return schema


_TEXTS = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
_RULE = re.compile(r"^[ \t]*[?!]?([A-Za-z_]\w*)[^:\n|]*:", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_]\w*")


def _rules(grammar: str) -> dict[str, set[str]]:
    """Rules and terminals of a grammar in Lark's form, with the names in each."""
    text = _TEXTS.sub(" ", grammar)
    starts = [*_RULE.finditer(text)]
    ends = [one.start() for one in starts[1:]] + [len(text)]
    return {
        one[1]: set(_NAME.findall(text, one.end(), end))
        for one, end in zip(starts, ends, strict=True)
    }


def _serve() -> None:
    questions, answer = exchange()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads what native code says
    for kind, source, seconds in questions:
        limit_cpu(seconds)
        answer(_answer(kind, source))


def main() -> None:
    """Compile what stdin says, a JSON list of kind, source and seconds a line, until it ends."""
    limit_child(_CHILD_MEMORY)
    threading.stack_size(_CHILD_STACK)
    worker = threading.Thread(target=_serve)
    worker.start()
    worker.join()


if __name__ == "__main__":
    main()
