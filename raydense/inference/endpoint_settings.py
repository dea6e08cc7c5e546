"""The settings of an OpenAI-compatible endpoint: where it is, which model it runs, how fast it is asked, and what its tokens cost."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator

from raydense.errors import InputError
from raydense.forecast import tokens
from raydense.runtime.progress import duration
from raydense.settings import BaseSettings, resource, setting

PER_TOKENS = 1e6  # what a price is of
_OURS = ("messages", "model", "n", "stream")  # fields of a request that no setting may replace
_CHAT_TOKENS = 10.0  # that a server puts around a message


class EndpointSettings(BaseSettings):
    """An OpenAI-compatible endpoint (chat completions): a vendor's, or that of vLLM, llama.cpp, Ollama and others."""

    renamed: ClassVar[dict[str, str]] = {"most_refused": "max_refused"}

    url: str = resource(..., "its address up to the version, such as http://HOST:8000/v1: requests go to /chat/completions below it")
    model: str = setting(..., "the name of the model there", min_length=1)
    key_variable: str = resource("OPENAI_API_KEY", "the environment variable with the API key; where it is not set, no key is sent")
    extra_body: str = setting(
        "", 'more fields of a request, as a JSON object such as {"top_k": 25}; null leaves out one that is sent otherwise'
    )
    requests_at_once: int = resource(16, "how many requests are open at once, at most", ge=1, le=4096)
    requests_per_minute: float = resource(
        0.0, "how many requests are sent in a minute, at most, evenly spaced; repeated ones count; 0: no limit", ge=0
    )
    attempts: int = resource(8, "how often a request is sent that the endpoint fails to answer, or refuses for now", ge=1)
    timeout: float = resource(120.0, "seconds until an attempt has failed", gt=0)
    max_refused: float = resource(
        0.01,
        "the share of all requests that may be refused for what their text is (400, 413, 422) and stay empty; 10 always may",
        ge=0,
        le=1,
    )
    price_in: float = resource(0.0, "dollars for a million tokens of prompts", ge=0)
    price_out: float = resource(0.0, "dollars for a million tokens of replies", ge=0)
    max_cost: float = resource(
        0.0, "dollars at which no more is asked; what was answered is kept, open requests are still paid for; 0: no limit", ge=0
    )

    @field_validator("url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        """The address without a slash at its end. InputError, which does not repeat it, if it may contain a secret."""
        try:
            parts = urlsplit(value)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ValueError("is no address") from None
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            fix = "give the address alone, and the key in an environment variable (key_variable)"
            raise InputError("contains more than a host and a path", f"endpoint.url: {parts.scheme}://***", fix)
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError("must begin with http:// or https:// and a host")
        return value.rstrip("/").removesuffix("/chat/completions")

    @field_validator("key_variable")
    @classmethod
    def _is_name(cls, value: str) -> str:
        """InputError, which does not repeat it, if it is no name: it may be the key."""
        if not re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII):
            raise InputError("is no name of an environment variable", "endpoint.key_variable", "put the key into one, and give its name")
        return value

    @field_validator("extra_body", mode="before")
    @classmethod
    def _is_object(cls, value: object) -> object:
        """A JSON object as text, always written in the same way; a mapping of YAML is taken too."""
        if value == "":
            return value
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ValueError("must be a JSON object")
        if ours := [key for key in _OURS if key in found]:
            raise ValueError(f"must not have {', '.join(ours)}")
        return json.dumps(found, sort_keys=True)

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.max_cost and not (self.price_in or self.price_out):
            raise ValueError("max_cost needs price_in or price_out")
        return self

    def cost(self, prompt_tokens: float, completion_tokens: float) -> float:
        """The dollars for so many tokens of prompts and of replies."""
        return (prompt_tokens * self.price_in + completion_tokens * self.price_out) / PER_TOKENS

    def body(self, prompt: str, **fields: Any) -> dict[str, Any]:
        """A request of one message, with these fields and those of `extra_body`."""
        body = {"model": self.model, "messages": [{"role": "user", "content": prompt}], **fields}
        body |= json.loads(self.extra_body or "{}")
        return {key: value for key, value in body.items() if value is not None}

    def foreseen(self, requests: int, characters: float, replied: float) -> str:
        """What `requests` of so many characters each, and as many replies of `replied` characters, will need, in words."""
        read, written = (requests * tokens(each, 2**31) for each in (characters + 4 * _CHAT_TOKENS, replied))
        words = [f"{requests:,} requests, about {read:,.0f} tokens in and {written:,.0f} out"]
        words += [f"${self.cost(read, written):,.2f}"] if self.price_in or self.price_out else []
        words += [f"at least {duration(60 * requests / self.requests_per_minute)}"] if self.requests_per_minute else []
        return ", ".join(words)
