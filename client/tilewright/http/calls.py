"""Requests, not yet sent. A :class:`Call` says what to send and how to read the answer; a sender sends it.

A method that takes several requests is a generator: it yields each call and is sent the answer. So one
:func:`endpoint` serves a class that waits (:class:`Sender`) and one that awaits (:class:`AsyncSender`).
"""

from __future__ import annotations

import abc
import base64
import dataclasses
import functools
import json
from collections.abc import Callable, Coroutine, Generator, Mapping
from http import HTTPStatus
from numbers import Real
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote, unquote, unquote_to_bytes, urlsplit

from tilewright import wire
from tilewright.errors import InvalidProblem, ServiceError, ServiceUnreachable
from tilewright.lazy import LazyModule
from tilewright.schema.codec import rule

if TYPE_CHECKING:
    import pydantic
else:
    pydantic = LazyModule("pydantic")

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound="pydantic.BaseModel")

JSON = "application/json"
NDJSON = "application/x-ndjson"

# The most bytes of an answer: about one thing, or an error; a page of a list or a config set; a kernel.
ONE_BYTES, MANY_BYTES, KERNEL_BYTES = 2**20, 2**26, 2**22
_IDEMPOTENCY_KEY = "Idempotency-Key"
_NOT_MODIFIED = 304
_PURE = frozenset({"/gemm", "/best-config/lookup"})  # a POST for the sake of its body


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request; header names are lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and how its answer is read.

    Attributes:
        content: the body, or its parts.
        answer_s: how much longer than other steps the wait for the answer may take.
        answer_bytes: most bytes that the answer may have, if it is no error and has no ``sink``.
        delay_s: seconds to wait before it is sent.
        sink: takes the body of a 200 in pieces while it arrives; the reply then has no content.
    """

    method: str
    path: str
    parse: Callable[[Reply], T]
    params: dict[str, str] = dataclasses.field(default_factory=dict)
    content: bytes | list[memoryview] | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    answer_s: float = 0.0
    answer_bytes: int = ONE_BYTES
    delay_s: float = 0.0
    sink: Callable[[bytes], object] | None = None

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice changes no more than sending it once."""
        return self.method == "GET" or self.path in _PURE or _IDEMPOTENCY_KEY in self.headers

    @property
    def sent_bytes(self) -> int:
        """The size of its body."""
        return sum(map(len, self.content)) if isinstance(self.content, list) else len(self.content or b"")

    def __iter__(self) -> Generator[Call[Any], Any, T]:
        """The answer: ``yield from call`` in an endpoint."""
        parsed: T = yield self
        return parsed


Flow = Generator[Call[Any], Any, T]
"""The calls of an endpoint one after the other; it is sent the answer of each and returns its own result."""


class Sender(abc.ABC):
    """Sends each call of an endpoint and waits for the answer."""

    @abc.abstractmethod
    def _send(self, call: Call[T]) -> T:
        """The answer of one call."""

    def _run(self, start: Callable[[], Call[T] | Flow[T]]) -> T:
        flow: Any = iter(start())
        try:
            call = next(flow)
            while True:
                try:
                    reply = self._send(call)
                except BaseException as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result


class AsyncSender(abc.ABC):
    """Sends each call of an endpoint and awaits the answer."""

    @abc.abstractmethod
    async def _send(self, call: Call[T]) -> T:
        """The answer of one call."""

    async def _run(self, start: Callable[[], Call[T] | Flow[T]]) -> T:
        flow: Any = iter(start())
        try:
            call = next(flow)
            while True:
                try:
                    reply = await self._send(call)
                except BaseException as error:
                    call = flow.throw(error)
                else:
                    call = flow.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result


class endpoint(Generic[P, T]):
    """A method written once for both clients: decorates a function that returns a call or a flow of calls.

    Read from the class it is that function, for flows that contain others.
    """

    @overload
    def __init__(self, flow: Callable[Concatenate[Any, P], Call[T]]) -> None: ...
    @overload
    def __init__(self, flow: Callable[Concatenate[Any, P], Flow[T]]) -> None: ...
    def __init__(self, flow: Any) -> None:
        self._flow = flow

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Flow[T]]: ...
    @overload
    def __get__(self, client: Sender, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncSender, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self._flow

        @functools.wraps(self._flow)
        def method(*arguments: P.args, **options: P.kwargs) -> Any:
            return client._run(functools.partial(self._flow, client, *arguments, **options))

        return method


def answer(call: Call[T], reply: Reply) -> T:
    """The parsed answer of a call.

    Raises:
        ServiceError: the service answered with a problem document.
        ServiceUnreachable: the answer is not from tilewright.
    """
    if reply.status >= 400:
        raise ServiceError(reply.status, _problem_document(reply))
    if reply.status >= 300 and reply.status != _NOT_MODIFIED:
        raise ServiceUnreachable(
            f"{call.method} {call.path} is redirected to {reply.headers.get('location', 'nowhere')[:200]!r}; "
            "use the URL of the service itself"
        )
    try:
        return call.parse(reply)
    except (InvalidProblem, KeyError, ValueError) as error:
        raise ServiceUnreachable(
            f"{call.method} {call.path}: the answer is not one of tilewright's ({error}); check the URL"
        ) from error


def checked_url(url: str, key: str | None) -> tuple[str, dict[str, str]]:
    """The URL of a service or of a published tree, without a slash at its end, and the header that says who
    asks: with the API key, or with the user and the password that stood in the URL. The URL that is given
    back stands in messages, logs and files.

    Raises:
        InvalidProblem: it is not ``http://host`` or ``https://host``, with or without port and path, nor
            ``file:///path``; there are a key and a user; or the key is empty or none.
    """
    try:
        url.encode()  # as messages, hashes and files need it
        parts = urlsplit(url)
        port, named = parts.port, parts.scheme in ("http", "https") and bool(parts.hostname)
        named = named and "@" not in parts.path  # NOTE: what follows a slash in a password
        named = named or (parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"))
        user, _, host = parts.netloc.rpartition("@")
        basic = b":".join(map(unquote_to_bytes, user.partition(":")[::2]))
    except (ValueError, TypeError, AttributeError):
        named = False
    if not named or port == 0 or parts.query or parts.fragment or "\0" in unquote(parts.path):
        shown = f"***@{str(url).rpartition('@')[2]}" if "@" in str(url) else url
        raise InvalidProblem(
            "the URL of a service must be like http://127.0.0.1:8080, that of a published folder like"
            f" file:///srv/kernels, and a password in it has %40 for @ and %2F for /; got {shown!r}"
        )
    if key == "":
        raise InvalidProblem(
            "key is empty, as an empty variable gives it; give an API key, or None for no key"
        )
    if key is not None and not _fits_header(key):
        raise InvalidProblem(
            "an API key must be text of printable ASCII, as 'tilewright keys create' shows it; remove a line"
            " break or a space that was read with it"
        )
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    if basic != b":":
        if key:
            raise InvalidProblem(
                "a request names a user or an API key; remove the user from the URL, or the key"
            )
        headers = {"Authorization": f"Basic {base64.b64encode(basic).decode()}"}
    return parts._replace(netloc=host).geturl().rstrip("/"), headers


MOST_SECONDS = 1e9  # thirty years; the system cannot wait for ten times as long


def checked_timeout(seconds: float) -> float:
    """A time limit that the system can wait for.

    Raises:
        InvalidProblem: it is no number, not positive, or too large.
    """
    if not is_number(seconds) or not 0.0 < float(seconds) <= MOST_SECONDS:
        raise InvalidProblem(f"timeout must be seconds above 0, at most {MOST_SECONDS:g}; got {seconds!r}")
    return float(seconds)


def is_number(value: object) -> bool:
    """Whether a value is a real number, of Python or of NumPy, and no flag."""
    return isinstance(value, Real) and not isinstance(value, bool)


def checked_flag(name: str, value: Any) -> bool:
    """A flag, of Python or of NumPy; any text would count as true, also ``"no"``.

    Raises:
        InvalidProblem: it is neither.
    """
    plain = value.item() if getattr(value, "ndim", None) == 0 else value
    if not isinstance(plain, bool):
        raise InvalidProblem(f"{name} must be a flag; use True or False, got {value!r}")
    return plain


def checked_text(name: str, value: str) -> str:
    """A text that a header and a query can carry.

    Raises:
        InvalidProblem: it cannot.
    """
    if not _fits_header(value):
        raise InvalidProblem(
            f"{name} must be text of printable ASCII without a space at an end, got {value!r}"
        )
    return value


def _fits_header(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable() and value.strip(" ") == value


def unreachable(url: object, error: Exception) -> ServiceUnreachable:
    """The error for a transport that failed."""
    return ServiceUnreachable(
        f"no answer from {url} ({type(error).__name__}: {error}); "
        "start the service with 'tilewright serve' or check the URL"
    )


def get(path: str, model: type[M], query: pydantic.BaseModel | None = None, **others: str | None) -> Call[M]:
    """``GET path`` with the fields of a query that were set, and other parameters that are not None."""
    params = params_of(query) if query else {}
    params |= {name: value for name, value in others.items() if value is not None}
    return Call("GET", path, model_of(model), params)


def page(path: str, model: type[M], query: pydantic.BaseModel | None = None, **others: str | None) -> Call[M]:
    """:func:`get` for a list."""
    return dataclasses.replace(get(path, model, query, **others), answer_bytes=MANY_BYTES)


def post(
    path: str,
    body: pydantic.BaseModel,
    parse: Callable[[Reply], T],
    idempotency_key: object = None,
    answer_bytes: int = ONE_BYTES,
) -> Call[T]:
    """``POST path`` with a JSON body, without the fields that have their defaults.

    Raises:
        InvalidProblem: no header can carry the key.
    """
    headers = {"Content-Type": JSON}
    if idempotency_key is not None:
        headers[_IDEMPOTENCY_KEY] = checked_text("idempotency_key", str(idempotency_key))
    content = body.model_dump_json(exclude_defaults=True).encode()
    return Call("POST", path, parse, content=content, headers=headers, answer_bytes=answer_bytes)


def path_of(*parts: str) -> str:
    """A path of these parts, with their characters quoted.

    Raises:
        InvalidProblem: a part is empty, no printable text, or a step to another path.
    """
    for part in parts:
        if not isinstance(part, str) or not part or not part.isprintable():
            raise InvalidProblem(f"an id or a digest must be text, printable and not empty, got {part!r}")
        if part in (".", ".."):  # names another path, also when it is quoted
            raise InvalidProblem(f"an id or a digest must not be {part!r}; take it from a list")
    return "".join(f"/{quote(part, safe=':')}" for part in parts)


def model_of(model: type[M]) -> Callable[[Reply], M]:
    """A parser of JSON bodies."""
    return lambda reply: model.model_validate_json(reply.content)


def file_of(kind: str, name: str = "") -> Callable[[Reply], None]:
    """A check of answers whose body went to a sink: of their type, and of the file name that they suggest."""

    def check(reply: Reply) -> None:
        found = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        named = reply.headers.get("content-disposition", "")
        if reply.status != HTTPStatus.OK or found != kind or name not in named:
            wanted = f"200 with {kind}{name and f' named {name}'}"
            raise ValueError(f"{reply.status} with {found or 'no type'} instead of {wanted}")

    return check


def params_of(query: pydantic.BaseModel) -> dict[str, str]:
    """The parameters of a query string: the fields that were set."""
    values = query.model_dump(mode="json", exclude_none=True, exclude_unset=True).items()
    return {name: json.dumps(value) if isinstance(value, bool) else str(value) for name, value in values}


def checked(model: type[M], fields: Mapping[str, Any]) -> M:
    """A request made of these fields; scalars of NumPy and torch count as numbers of Python.

    Raises:
        InvalidProblem: a field breaks a rule.
    """
    try:
        return model.model_validate(_plain(fields))
    except pydantic.ValidationError as error:
        rules = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'request'}: {rule(e)}" for e in error.errors())
        raise InvalidProblem(rules) from error


def _plain(value: Any) -> Any:
    # NOTE: strict fields take exact types alone.
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _problem_document(reply: Reply) -> dict[str, Any]:
    try:
        return wire.ProblemDocument.model_validate_json(reply.content).model_dump(exclude_none=True)
    except ValueError:
        return {"title": "unexpected answer", "detail": reply.content[:200].decode("utf-8", "replace")}
