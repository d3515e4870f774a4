"""Chat templates that are given instead of a model's own: a file of Jinja, or a known one's name.

A model answers well only in the format that it was trained with; for a base model none is right.
"""

from app.here import at_home, given_text
from runtimes.chat import render_chat
from runtimes.errors import RequestError

_MOST_BYTES = 2**20

# As the models' makers publish them, without tools.
KNOWN = {
    "chatml": (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama3": (
        "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}"
        "<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "gemma": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if message['role'] == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
        "<start_of_turn>{{ 'model' if message['role'] == 'assistant' else 'user' }}\n"
        "{{ message['content'] | trim }}<end_of_turn>\n"
        "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
}


def read_template(name: str) -> str:
    """The template that ``name`` means: a file, or one of ``KNOWN``. Raises RequestError for none
    of these, a file that cannot be read, and a template that does not compile or renders nothing.
    """
    path = at_home(name)
    if not path.is_file():
        if name in KNOWN:
            return KNOWN[name]
        names = ", ".join(KNOWN)
        raise RequestError(
            f"there is no chat template {name}: no such file; known names are {names}"
        )
    template = given_text(path, _MOST_BYTES)
    try:
        text = render_chat(template, [{"role": "user", "content": "Hello"}])
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error
    if "Hello" not in text:
        raise RequestError(f"{path} leaves out what the user says")
    return template
