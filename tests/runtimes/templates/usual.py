# ruff: noqa: E501
"""Templates as models bring them, by what they do: after those of Llama 3, Qwen 3, Mistral, Gemma,
gpt-oss, DeepSeek and Hermes."""

from __future__ import annotations

from typing import Any

USUAL = {
    "llama": """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}{{- system_message }}{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
    {%- else %}{{- raise_exception("Cannot put tools in the first user message!") }}{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
    {%- elif message.role == "tool" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
""",
    "qwen": """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for tool in tools or [] %}{{- "\\n" ~ tool | tojson }}{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}{{- '<|im_start|>' + message.role + '\\n' + content }}{%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>' ~ tool_call.name ~ (tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson) }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
""",
    "mistral": """{%- set loop_messages = messages[1:] if messages[0]["role"] == "system" else messages %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages | rejectattr("role", "equalto", "tool") | rejectattr("tool_calls", "defined") %}
    {%- if (message["role"] not in ["user", "assistant"]) %}{{- raise_exception("roles") }}{%- endif %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}{{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- else %}{{- " " + message["content"]|trim + eos_token}}{%- endif %}
{%- endfor %}
""",
    "gemma": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}{%- set first = messages[0]['content'][0]['text'] + '\\n\\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = "model" if (message['role'] == 'assistant') else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}
""",
    "gpt-oss": """{%- macro type_of(spec, required=false) -%}
    {%- if spec.type == "array" -%}{{- type_of(spec['items']) + "[]" if spec['items'] else "any[]" }}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type[0] is defined -%}{{- spec.type | join(" | ") }}
    {%- elif spec.enum -%}{{- '"' + spec.enum|join('" | "') + '"' -}}
    {%- elif spec.type == "object" -%}{%- if spec.properties -%}{{- "{\\n" -}}
        {%- for name, one in spec.properties.items() -%}{{- name }}{%- if name not in (spec.required or []) -%}{{- "?" }}{%- endif -%}{{- ": " }}{{ type_of(one) }}{%- if not loop.last -%}{{-", " }}{%- endif -%}{%- endfor -%}{{- "}" }}{%- else -%}{{- "object" }}{%- endif -%}
    {%- else -%}{{- spec.type or "any" }}{%- endif -%}
{%- endmacro -%}
{%- macro namespace_of(name, tools) -%}
    {{- "## " + name + "\\n\\nnamespace " + name + " {\\n\\n" }}
    {%- for tool in tools %}{%- set tool = tool.function %}{{- "// " + tool.description + "\\ntype "+ tool.name + " = (_: " + type_of(tool.parameters) + ") => any;\\n\\n" }}{%- endfor %}{{- "}" }}
{%- endmacro -%}
{%- set ns = namespace(last=none, count=0) -%}
{%- if tools -%}{{- namespace_of("functions", tools) }}{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "tool_calls" in message -%}{%- set ns.last = message.tool_calls[0].function.name -%}
            {{- "<|start|>assistant to=functions." + ns.last + "<|message|>" + message.tool_calls[0].function.arguments|tojson + "<|call|>" }}
        {%- else -%}{{- "<|start|>assistant<|message|>" + message.content + "<|end|>" }}{%- endif -%}
    {%- elif message.role == 'tool' -%}
        {%- if ns.last is none %}{{- raise_exception("no call") }}{%- endif %}
        {{- "<|start|>functions." + ns.last + "<|message|>" + message.content|tojson + "<|end|>" }}
    {%- else -%}{%- set ns.count = ns.count + 1 %}{{- "<|start|>" ~ message.role ~ "<|message|>" ~ message.content ~ "<|end|>" }}{%- endif -%}
    {%- if ns.count > 1000 %}{%- continue %}{%- endif -%}
{%- endfor -%}
""",
    "deepseek": """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{% set ns = namespace(is_first=false, system_prompt='', is_first_sp=true) %}
{%- for message in messages %}{%- if message['role'] == 'system' %}
{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}
{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{{'<User>' + message['content']}}
{%- elif message['role'] == 'assistant' and 'tool_calls' not in message %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<Assistant>' + content + eos_token}}
{%- elif message['role'] == 'assistant' %}{%- for tool in message['tool_calls'] %}{{ tool['type'] + tool['function']['name'] + '\\n```json\\n' ~ tool['function']['arguments'] ~ '\\n```' }}{%- endfor %}
{%- endif %}{%- endfor %}{% if add_generation_prompt %}{{'<Assistant><think>\\n'}}{% endif %}
""",
    "hermes": """{%- macro json_to_python_type(spec) %}
{%- set types = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
{%- if types[spec.type] is defined %}{{- types[spec.type] }}
{%- elif spec.type == "array" %}{{- "list[" + json_to_python_type(spec|items) + "]"}}
{%- else %}{{- "Any" }}{%- endif %}
{%- endmacro %}
{%- for tool in tools or [] %}
{%- set tool = tool.function if tool.function is defined else tool %}
{{- '{"name": "' + tool.name + '", "args": ' }}
{%- for name, one in tool.parameters.properties | dictsort %}{{- name + ": " + json_to_python_type(one) }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
{%- for name, one in tool.parameters.properties | items %}{{- loop.index ~ loop.cycle('a', 'b') ~ name }}{%- endfor %}
{{- "}" }}
{%- endfor %}
{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' ~ message.content | default('', true) ~ '<|im_end|>' + '\\n' * 2 }}{%- endfor %}
""",
}  # fmt: skip

_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln <b>"}}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "How is it in Köln? \U0001f600 <b> {} %s"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "content": "12°, rain"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt rains."},
    {"role": "user", "content": "Thanks."},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Look up 'x' & \"y\".",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["a", "b"]},
                    "days": {"type": "integer"},
                    "more": {"type": ["string", "null"]},
                },
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "news")
]
