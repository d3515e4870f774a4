"""Rows that are lines of an OpenAI batch: a request each, with ``custom_id``, ``method``, ``url``
and ``body``."""

from collections.abc import Mapping
from typing import Any

from app.openai.request import ENDPOINTS, Endpoint, body_task
from app.openai.task import MISSING, InputError, Task, as_unicode, shown
from runtimes.request import SamplingParams


def endpoint_of(row: Mapping[str, Any]) -> Endpoint | None:
    """Where a row that was meant as a line of an OpenAI batch goes, well made or not: to chat where
    it does not say so rightly. None for any other row."""
    if "prompt" in row or "messages" in row:
        return None
    if "custom_id" in row:
        meant = "body" in row or "url" in row
    else:
        meant = isinstance(row.get("body"), Mapping) and ("url" in row or "method" in row)
    url = row.get("url")
    return ENDPOINTS.get(url if isinstance(url, str) else "", "chat") if meant else None


def request_task(row: Mapping[str, Any], defaults: SamplingParams) -> Task:
    """The task of a batch line. Raises InputError as ``body_task`` does."""
    identity = row.get("custom_id", MISSING)
    if not isinstance(identity, str) or not identity:
        raise InputError("missing_parameter", f"custom_id must be a text, not {shown(identity)}")
    as_unicode(identity, "custom_id")  # by which its answer has to be found
    method = row.get("method", MISSING)
    if method != "POST":
        raise InputError("invalid_value", f'method must be "POST", not {shown(method)}')
    url = row.get("url", MISSING)
    if not isinstance(url, str) or url not in ENDPOINTS:
        raise InputError(
            "unsupported_url", f"url must be {' or '.join(ENDPOINTS)}, not {shown(url)}"
        )
    return body_task(row.get("body", MISSING), ENDPOINTS[url], defaults)
