"""Any OpenAI-compatible chat endpoint as a policy: a hosted model, vLLM, SGLang, llama.cpp, Ollama."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ptrl.core.errors import ConfigError, Problem, PtrlError
from ptrl.core.policy import Reply, Sampling
from ptrl.core.records import FinishReason, Message

if TYPE_CHECKING:
    import httpx2
    from tenacity import RetryCallState

INSTALL_HINT = "pip install 'ptrl-core[endpoint]'"
RETRIED = frozenset({408, 409, 425, 429})
"""Client errors that pass by themselves; every 5xx is retried as well."""

LONGEST_WAIT = 60.0
"""Seconds between two tries at most, whatever the endpoint asks for."""

SHOWN = 300
"""Characters that an error shows of what an endpoint answered."""


class EndpointError(PtrlError, OSError):
    """An endpoint that cannot be used, or gave no answer: the rollout is masked, never scored as zero."""


class _PassingError(EndpointError):
    """A failure that may pass: it is tried again."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class OpenAIEndpoint:
    """A `ChatPolicy` over `POST {url}/chat/completions`.

    Args:
        url: Base URL, such as `http://localhost:8000/v1`.
        model: The endpoint's name of the model.
        api_key_env: Environment variable that holds the API key; None sends none. The key is never shown.
        concurrency: Requests in flight at a time.
        timeout: Seconds that one request may take, all of it.
        retries: Further tries after a failure that may pass: no connection, a timeout, 429 or 5xx.
        backoff: Seconds that the first wait between tries has at most; it doubles, at random.

    Raises:
        ConfigError: When the URL or the API key cannot be used.
        EndpointError: When the extra `ptrl-core[endpoint]` is not installed.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key_env: str | None = None,
        concurrency: int = 16,
        timeout: float = 120.0,
        retries: int = 5,
        backoff: float = 1.0,
    ) -> None:
        self.url = _checked_url(url)
        self.model = model
        self._key = _api_key(api_key_env)
        self._concurrency = max(1, concurrency)
        self._timeout = timeout
        self._retries = retries
        self._backoff = backoff
        self._sleep = asyncio.sleep
        self._client = _client(self._key, self._concurrency)

    def __repr__(self) -> str:
        """The endpoint without its key."""
        return f"OpenAIEndpoint({self.url!r}, {self.model!r})"

    @property
    def concurrency(self) -> int:
        """How many replies may be asked for at a time."""
        return self._concurrency

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def reply(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        stop: Sequence[str],
        tools: Sequence[Mapping[str, Any]],
        limit: int,
    ) -> Reply:
        """Returns the next assistant message, of at most `limit` tokens.

        Raises:
            EndpointError: When the endpoint gives no usable answer.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": limit,
        }
        if stop:
            body["stop"] = list(stop)
        if tools:
            body["tools"] = list(tools)
        answer = await self._post(body)
        try:
            return _reply(answer)
        except ValueError as error:
            raise EndpointError(f"{self.url} {self._redacted(str(error))}") from None

    async def _post(self, body: Mapping[str, Any]) -> Any:
        """Sends a request, again while its failure may pass, and returns the answer's JSON."""
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

        tries = AsyncRetrying(
            retry=retry_if_exception_type(_PassingError),
            stop=stop_after_attempt(1 + self._retries),
            wait=self._wait,
            sleep=self._sleep,
            reraise=True,
        )
        return await tries(self._post_once, body)

    def _wait(self, state: RetryCallState) -> float:
        """Returns the seconds to wait: as the endpoint asks, else at random up to a doubling bound."""
        from tenacity import wait_random_exponential

        error = state.outcome.exception() if state.outcome else None
        asked = error.wait if isinstance(error, _PassingError) else None
        if asked is not None:
            return min(asked, LONGEST_WAIT)
        return wait_random_exponential(multiplier=self._backoff, max=LONGEST_WAIT)(state)

    async def _post_once(self, body: Mapping[str, Any]) -> Any:
        import httpx2

        try:
            async with asyncio.timeout(self._timeout):
                response = await self._client.post(f"{self.url}/chat/completions", json=body)
        except TimeoutError:
            raise _PassingError(f"{self.url} gave no answer within {self._timeout:g} s") from None
        except httpx2.TransportError as error:
            reason = self._redacted(str(error)) or type(error).__name__
            raise _PassingError(f"{self.url} cannot be reached: {reason}") from None
        except httpx2.HTTPError as error:
            raise EndpointError(f"{self.url}: {self._redacted(str(error))}") from None
        self._raise_for_status(response)
        try:
            return response.json()
        except ValueError:
            text = self._redacted(response.text)
            raise EndpointError(f"{self.url} answered what is not JSON: {text!r}") from None

    def _raise_for_status(self, response: httpx2.Response) -> None:
        status = response.status_code
        if 200 <= status < 300:
            return
        message = f"{self.url} answered with status {status}: {self._redacted(_error_text(response))}"
        if status in RETRIED or status >= 500:
            raise _PassingError(message, _retry_after(response))
        if status in (401, 403):
            message += " — name the environment variable that holds the API key (--api-key-env)"
        elif status in (301, 302, 303, 307, 308):
            message += f" — use the URL that it redirects to: {response.headers.get('location', '')}"
        raise EndpointError(message)

    def _redacted(self, text: str) -> str:
        """Returns the beginning of a text of the endpoint's, without the API key that it may repeat."""
        if self._key:
            text = text.replace(self._key, "***")
        return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def _checked_url(url: str) -> str:
    """Returns the base URL without its trailing slash."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        message = f"{url!r} is not the URL of an endpoint"
        raise ConfigError([Problem(key="endpoint", message=message, fix="such as http://localhost:8000/v1")])
    if parts.username or parts.password or parts.query or parts.fragment:
        message = "the URL holds more than an address and a path"
        fix = "give a key by the name of its environment variable (--api-key-env)"
        raise ConfigError([Problem(key="endpoint", message=message, fix=fix)])
    return url.rstrip("/").removesuffix("/chat/completions")


def _api_key(variable: str | None) -> str:
    """Returns the API key of an environment variable; empty when none is named. No message shows it."""
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        fix = f"export {variable}=..."
        raise ConfigError([Problem(key="api_key_env", message=f"{variable} is not set", fix=fix)])
    if not (key.isascii() and key.isprintable()):
        message = f"the content of {variable} cannot be an API key: it holds characters that a header cannot"
        raise ConfigError([Problem(key="api_key_env", message=message)])
    return key


def _client(key: str, concurrency: int) -> httpx2.AsyncClient:
    try:
        import httpx2
        import tenacity  # noqa: F401
    except ModuleNotFoundError as error:
        raise EndpointError(f"a chat endpoint needs {error.name}, which is not installed — {INSTALL_HINT}") from None
    return httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        limits=httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
        timeout=None,  # `asyncio.timeout` bounds a whole request, which a timeout per read does not
    )


def _retry_after(response: httpx2.Response) -> float | None:
    """Returns the seconds that the endpoint asks to wait, where it gives a number."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _error_text(response: httpx2.Response) -> str:
    """Returns what an endpoint says is wrong: its error's message, or the beginning of its answer."""
    try:
        error = response.json()["error"]
        return str(error["message"] if isinstance(error, Mapping) else error)
    except (ValueError, KeyError, TypeError):
        return response.text.strip() or response.reason_phrase


def _reply(answer: Any) -> Reply:
    """Returns the first choice of a chat completion.

    Raises:
        ValueError: When it is none, or holds nothing that an environment can read.
    """
    try:
        choice = answer["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        text = message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ValueError(f"answered what is no chat completion: {answer!r}") from None
    if reason == "content_filter":
        raise ValueError("withheld the answer by its content filter")
    if message.get("tool_calls"):
        raise ValueError(
            "answered with structured tool calls, and environments read text — start the server"
            " without a tool parser, so that it leaves them in the message"
        )
    if not isinstance(text, str):
        raise ValueError(f"answered with a message whose content is {type(text).__name__}, not text")
    finish: FinishReason = "length" if reason == "length" else "stop"
    return Reply(text=text, finish=finish, tokens=_tokens(answer))


def _tokens(answer: Mapping[str, Any]) -> int:
    usage = answer.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return count if isinstance(count, int) and count >= 0 else 0
