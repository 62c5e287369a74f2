"""The endpoints for results, imports and config sets, as :mod:`tilewright.http.endpoints` has the others."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Unpack

from tilewright import wire
from tilewright.artifact import Artifact, bundle
from tilewright.errors import ArtifactError, InvalidProblem, ServiceError, ServiceUnreachable
from tilewright.http.arguments import (
    BestOptions,
    ExportOptions,
    File,
    ListOptions,
    TargetOptions,
    open_to_read,
    open_to_write,
    signed_parts,
    with_problem,
)
from tilewright.http.calls import (
    JSON,
    KERNEL_BYTES,
    MANY_BYTES,
    NDJSON,
    Call,
    Flow,
    Reply,
    checked,
    checked_text,
    endpoint,
    file_of,
    get,
    model_of,
    page,
    params_of,
    path_of,
    post,
)
from tilewright.http.sets import INDEX, Index, SetAnswer, is_index, kernel_path, set_path
from tilewright.schema.problem import GemmProblem
from tilewright.trust import HEADER, About, ServiceKey, statement

_LOOKUPS = 250  # problems a request
_ARTIFACTS = 250  # artifacts a request
_USUAL_BYTES, _MOST_BYTES = 2**18, 2**30  # a kernel has 30 to 150 KB; all kernels of a set
_PAGE = 1000
_MOST_PAGES = 1000  # of a list: a million winners or config sets
_DELETE_S = 600.0  # results go in small steps, with pauses for others


class ResultEndpoints:
    """Every endpoint for results, imports and config sets as a method."""

    service_key: ServiceKey
    published: bool | None = None  # whether the last config set came from a published tree; None before it

    # Winners

    @endpoint
    def best_config(self, problem: GemmProblem, **options: Unpack[BestOptions]) -> Call[wire.BestConfigView]:
        """The stored winner for a problem; a 404 :class:`ServiceError` where it was never tuned."""
        query = checked(wire.BestQuery, with_problem(problem, options))
        return get("/best-config", wire.BestConfigView, query)

    @endpoint
    def explain_result(self, problem: GemmProblem, **options: Unpack[BestOptions]) -> Call[wire.ExplainView]:
        """Why the stored winner for a problem takes its time; a 404 :class:`ServiceError` where it was never
        tuned."""
        query = checked(wire.ExplainQuery, with_problem(problem, options))
        return get("/explain", wire.ExplainView, query)

    @endpoint
    def report(self, file: File, device_class: str | None = None) -> Flow[int]:
        """Write the results of a device class, or of all, to one HTML file that opens without a server; gives
        the bytes written."""
        query = checked(wire.ReportQuery, {"device_class": device_class})
        call = Call("GET", "/report", file_of("text/html", "tilewright-report.html"), params_of(query))
        return (yield from _written(call, file))

    @endpoint
    def config_list(
        self, *, limit: int = 50, cursor: str | None = None, **options: Unpack[ListOptions]
    ) -> Call[wire.BestConfigList]:
        """A page of the winners of an architecture or device class; where there are none, its ``archs`` says
        which architectures have some."""
        query = checked(wire.BestQuery, {**options, "limit": limit, "cursor": cursor})
        return page("/best-config", wire.BestConfigList, query)

    @endpoint
    def configs(self, **options: Unpack[ListOptions]) -> Flow[list[wire.BestConfigView]]:
        """Every stored winner of an architecture or device class."""
        found: list[wire.BestConfigView] = []
        cursor: str | None = None
        cursors = set[str]()
        while True:
            page = yield from ResultEndpoints.config_list(self, limit=_PAGE, cursor=cursor, **options)
            found += page.items
            cursor = following(page, cursors)
            if cursor is None:
                return found

    @endpoint
    def lookup_many(
        self, problems: Iterable[GemmProblem], **options: Unpack[BestOptions]
    ) -> Flow[list[wire.LookupView]]:
        """What to run for each problem, in their order, asked of the service's current config set.

        ``match="nearest"`` allows near matches within ``max_regret``, a tenth unless given.
        """
        found: list[wire.LookupView] = []
        for part in _parts(problems, _LOOKUPS):
            fields = {**options, "problems": [with_problem(problem, {}) for problem in part]}
            body = checked(wire.LookupBody, fields)
            answer = yield from post(
                "/best-config/lookup", body, model_of(wire.LookupAnswer), answer_bytes=MANY_BYTES
            )
            if len(answer.items) != len(part):
                raise ServiceUnreachable(
                    f"the service answers {len(part)} lookups with {len(answer.items)} results; check the URL"
                )
            found += answer.items
        return found

    @endpoint
    def artifact(self, digest: str) -> Call[Artifact]:
        """A compiled kernel, checked against its digest.

        Raises:
            ArtifactError: what arrived does not match.
        """

        def parse(reply: Reply) -> Artifact:
            self.service_key.check(reply.headers.get(HEADER.lower()), statement(About.ARTIFACT, digest))
            return Artifact.from_bytes(reply.content, digest)

        return Call("GET", kernel_path(digest), parse, answer_bytes=KERNEL_BYTES)

    @endpoint
    def export(self, file: File, **options: Unpack[ExportOptions]) -> Flow[int]:
        """Write results to a file, given open or by its path; returns the bytes written."""
        query = checked(wire.ExportQuery, options)
        kind = JSON if query.format is wire.Format.T4 else NDJSON
        return (yield from _written(Call("GET", "/trials", file_of(kind), params_of(query)), file))

    @endpoint
    def import_results(self, file: File, kind: wire.Format | str = "ndjson") -> Flow[wire.ImportAnswer]:
        """Merge results that :meth:`export` wrote as ``ndjson`` or ``t4``: what is known changes nothing.

        Kernels are taken from files that a key signed which the service trusts. The service asks for an API
        key with the scope ``admin``.

        Raises:
            ServiceError: a line is damaged; those of earlier parts are kept, repeating is harmless.
        """
        whole = checked(wire.ExportQuery, {"format": kind}).format is wire.Format.T4
        headers = {"Content-Type": JSON if whole else NDJSON}
        answer, params = wire.ImportAnswer(), {"import_id": secrets.token_hex(16)}
        with open_to_read(file) as source:
            for content in [source.read()] if whole else signed_parts(source):
                call = Call("POST", "/trials", model_of(wire.ImportAnswer), params, content, headers)
                answer = answer + (yield from call)
        return answer

    @endpoint
    def imports(self, *, limit: int = 50, cursor: str | None = None) -> Call[wire.ImportList]:
        """A page of imports, newest first."""
        return page("/imports", wire.ImportList, page_of(limit, cursor))

    @endpoint
    def get_import(self, import_id: str) -> Call[wire.ImportDetails]:
        """An import, and its winners that wait to be built and raced by the service."""
        return get(path_of("imports", import_id), wire.ImportDetails)

    @endpoint
    def delete_import(self, import_id: str) -> Call[wire.Counts]:
        """Take out everything that an import brought; what the service raced itself stands as before."""
        path = path_of("imports", import_id)
        return Call("DELETE", path, model_of(wire.Counts), answer_s=_DELETE_S)

    @endpoint
    def delete_best(self, problem: GemmProblem, **target: Unpack[TargetOptions]) -> Call[wire.Counts]:
        """Take out the winner of a problem on a device class or architecture."""
        query = checked(wire.WinnerQuery, with_problem(problem, target))
        return Call("DELETE", "/best-config", model_of(wire.Counts), params_of(query))

    @endpoint
    def delete_problem(self, problem: GemmProblem) -> Call[wire.Counts]:
        """Take out a problem on all devices: its jobs, trials, winners and misses."""
        query = checked(wire.ProblemQuery, with_problem(problem, {}))
        return Call("DELETE", "/problems", model_of(wire.Counts), params_of(query))

    @endpoint
    def audit(self, *, limit: int = 50, cursor: str | None = None) -> Call[wire.AuditList]:
        """A page of the audit log: who changed what, newest first."""
        return page("/audit", wire.AuditList, page_of(limit, cursor))

    @endpoint
    def quarantine(
        self, device_class: str | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Call[wire.QuarantineList]:
        """A page of the configs that broke a device class, newest first."""
        query = {"device_class": device_class, "limit": limit, "cursor": cursor}
        return page("/quarantine", wire.QuarantineList, checked(wire.QuarantineQuery, query))

    @endpoint
    def release_quarantined(self, entry_id: int) -> Call[None]:
        """Have a config tried and served again."""
        return Call("DELETE", path_of("quarantine", str(entry_id)), lambda _: None)

    @endpoint
    def release_device(self, name: str) -> Call[None]:
        """Have a device used that is set aside, as it did not come back after a kill."""
        return Call("DELETE", path_of("devices", name, "set-aside"), lambda _: None)

    @endpoint
    def trust(self) -> Call[wire.TrustView]:
        """The public key that the service signs with, and the keys that it trusts."""
        return get("/trust", wire.TrustView)

    # Config sets

    @endpoint
    def current_set(self, device_class: str, etag: str | None = None) -> Flow[SetAnswer | None]:
        """The config set that a device class is served; None if ``etag`` still is what is served.

        Raises:
            ArtifactError: what arrived does not match its digest, or is of another class.
        """
        params = {"device_class": checked_text("device_class", device_class)}
        headers = {} if etag is None else {"If-None-Match": checked_text("etag", etag)}

        def parse(reply: Reply) -> SetAnswer | Index | None:
            if is_index(reply):
                return Index.from_bytes(reply.content)
            if reply.status == 304 and etag is None:
                raise ValueError("304 to a client that has no set")
            if reply.status == 304:
                return None
            return SetAnswer.read(reply, self.service_key, newest=newest).of_class(device_class)

        newest = self.service_key.newest_served(device_class)
        found = yield from Call("GET", INDEX, parse, params, headers=headers, answer_bytes=MANY_BYTES)
        self.published = isinstance(found, Index)
        if not isinstance(found, Index):
            return found
        digest = found.sets.get(device_class)
        if digest is None:
            raise ServiceError(404, {"title": "Not found", "detail": f"{device_class} has no published set"})
        self.service_key.check_served(found.served.get(device_class), device_class, digest, newest)
        if etag == f'"{digest}"':
            return None
        return (yield from ResultEndpoints.config_set(self, digest)).of_class(device_class)

    @endpoint
    def config_set(self, digest: str) -> Flow[SetAnswer]:
        """A snapshot, checked against its digest.

        Raises:
            ArtifactError: what arrived does not match.
        """
        parse = functools.partial(SetAnswer.read, key=self.service_key, digest=digest)
        found = yield from Call("GET", set_path(digest), parse, answer_bytes=MANY_BYTES)
        self.published = found.published
        return found

    @endpoint
    def config_sets(
        self, device_class: str | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Call[wire.SetList]:
        """A page of snapshots, latest first."""
        named = None if device_class is None else checked_text("device_class", device_class)
        return page("/config-sets", wire.SetList, page_of(limit, cursor), device_class=named)

    @endpoint
    def diff(self, a: str, b: str) -> Call[wire.SetDiff]:
        """What set ``b`` has other than set ``a``."""
        return page(path_of("config-sets", a, "diff", b), wire.SetDiff)

    @endpoint
    def pin(self, device_class: str, digest: str) -> Call[wire.SetInfo]:
        """Serve a snapshot to a device class until :meth:`unpin`, also if other winners come."""
        body = checked(wire.PinBody, {"device_class": device_class, "digest": digest})
        return post("/config-sets/current", body, model_of(wire.SetInfo))

    @endpoint
    def unpin(self, device_class: str) -> Call[None]:
        """Serve the latest winners again."""
        params = {"device_class": checked_text("device_class", device_class)}
        return Call("DELETE", "/config-sets/current", lambda _: None, params)

    @endpoint
    def artifacts(self, digest: str, want: Iterable[str] | None = None) -> Flow[dict[str, Artifact]]:
        """The kernels of a set, all or those wanted, by digest and checked against it.

        Raises:
            ArtifactError: one does not match or is not of the set, or the bundle ended early.
        """
        calls = list(bundle_calls(digest, want))
        config_set = (yield from ResultEndpoints.config_set(self, digest)).config_set
        found: dict[str, Artifact] = {}
        for call in calls:
            found |= bundle.unpack((yield from call))
        if foreign := sorted(found.keys() - {entry.artifact for entry in config_set.entries}):
            raise ArtifactError(
                f"the bundle of {digest} holds {foreign[0]}, which is not of that set; fetch it again"
            )
        return found


def following(page: wire.BestConfigList | wire.SetList, before: set[str]) -> str | None:
    """The cursor of the page that follows; it joins those that came ``before``.

    Raises:
        ServiceUnreachable: the pages have no end.
    """
    if page.next is None:
        return None
    if not page.items or page.next in before or len(before) == _MOST_PAGES:
        raise ServiceUnreachable("the service sends a list without an end; check the URL")
    before.add(page.next)
    return page.next


def bundle_calls(digest: str, want: Iterable[str] | None) -> Iterator[Call[bytes]]:
    """The requests for a set's artifacts, all or those wanted; each answer is a bundle, not yet checked.

    Raises:
        InvalidProblem: a wanted name is no digest.
    """
    path = path_of("config-sets", digest, "bundle")
    if want is None:
        yield Call("GET", path, lambda reply: reply.content, answer_bytes=_MOST_BYTES)
        return
    for part in _parts(want, _ARTIFACTS):
        most = KERNEL_BYTES + len(part) * _USUAL_BYTES
        body = checked(wire.BundleBody, {"want": part})
        yield post(path, body, lambda reply: reply.content, answer_bytes=most)


def page_of(limit: int, cursor: str | None) -> wire.PageQuery:
    """The query for a page of a list."""
    return checked(wire.PageQuery, {"limit": limit, "cursor": cursor})


def _parts(items: Iterable[Any], most: int) -> Iterator[list[Any]]:
    left = iter(several(items))
    while part := list(itertools.islice(left, most)):
        yield part


def several(items: Iterable[Any]) -> Iterable[Any]:
    """The items.

    Raises:
        InvalidProblem: they cannot be iterated over.
    """
    if not isinstance(items, Iterable):
        raise InvalidProblem(f"give several problems, misses or digests, such as a list; got {items!r}")
    return items


def _written(call: Call[None], file: File) -> Flow[int]:
    """Write an answer to a file; gives the bytes written."""
    sizes: list[int] = []
    with open_to_write(file) as target:
        yield from dataclasses.replace(call, sink=lambda piece: sizes.append(target.write(piece)))
    return sum(sizes)
