"""``create_app``: wires settings, store, engine and routes; nothing is created at import."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError

from service.engine.base import Engine
from service.engine.database_health import DatabaseHealth, unusable
from service.engine.engine import LocalEngine
from service.engine.event_feed import EventFeed
from service.engine.retune import StaleResults
from service.engine.upkeep import Upkeep
from service.fleet.engine import RayEngine
from service.gemm.estimates import Estimates
from service.gemm.memory import GemmMemory
from service.gemm.run import GemmRunner
from service.http import access, deps, errors, openapi, pages
from service.http.deps import Imports, Service
from service.http.routes import routers
from service.http.sessions import Sessions
from service.metrics import Metrics
from service.results.answer_cache import AnswerCache
from service.results.quality import ResultQuality
from service.results.served import ServedSets
from service.server import gauges, middleware
from service.settings import Settings
from service.signing import Signer
from service.web.now import JobWatch
from service.web.shared_work import SharedWork
from tilewright import __version__
from tuner.store import best
from tuner.store.database import Store, StoreError
from tuner.store.upkeep import staging

_DESCRIPTION = (
    "Tunes GEMM kernels on the devices of this machine, keeps every measurement, serves the winners."
)

log = logging.getLogger("tilewright.service")
_WRITE_WAIT_S = 5.0
_MOST_WRITERS = 20  # NOTE: half of the threads that requests run in, so that lookups go on meanwhile
_MOST_IMPORTS = 8
_LARGE_BODIES = {"/gemm": "max_body_bytes", "/trials": "max_import_bytes"}


def create_app(settings: Settings) -> FastAPI:
    """The service; its database is migrated and its devices start with it.

    Raises:
        StoreError: the database cannot be opened, or a newer release migrated it.
        Exposed: others than this machine would reach it, and no key guards it.
        SigningKeyError: its signing key cannot be read or made, or others may read it.
    """
    metrics = Metrics()
    signer = Signer.load_or_create(settings.signing_key)
    service = _service(settings, _open(settings, metrics), metrics, signer)
    app = FastAPI(
        title="tilewright",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=_lifespan,
        redirect_slashes=False,
        openapi_url=None,  # NOTE: FastAPI's own pages ask for no key and load scripts from elsewhere
        dependencies=[Depends(access.authorize), Depends(deps.check_plain)],
    )
    app.state.service = service
    app.state.gate = access.Gate(service.store)
    app.state.sessions = Sessions(signer, settings)
    app.add_middleware(middleware.HeadRequests)  # the innermost: the others see the method as it came
    app.add_middleware(middleware.BodyLimit, settings=settings, larger=_LARGE_BODIES)
    app.add_middleware(middleware.QueryLimit)
    app.add_middleware(middleware.SameSite, settings=settings)
    app.add_middleware(middleware.RequestLog, metrics=service.metrics)
    app.add_middleware(middleware.RequestId)
    for router in (*routers(), *pages.routers()):
        app.include_router(router)
    errors.install(app)
    openapi.install(app)
    return app


def _service(settings: Settings, store: Store, metrics: Metrics, signer: Signer) -> Service:
    engine = _engine(store, settings, metrics)
    store = store.impatient(_WRITE_WAIT_S, _MOST_WRITERS)
    quality = ResultQuality(engine)
    stale = StaleResults(store, settings, quality.state)
    served = ServedSets(store, quality, stale)
    origins = served.derived(best.origins)
    metrics.watch(functools.partial(gauges.read, store, engine, quality, origins))
    gemm_memory = GemmMemory(
        settings.max_buffer_bytes, settings.max_caller_gemms, metrics.gemm_refusals.labels("too-many").inc
    )
    return Service(
        settings=settings,
        store=store,
        health=DatabaseHealth(store),
        upkeep=Upkeep(store, settings),
        engine=engine,
        gemms=GemmRunner(settings, engine, served, metrics),
        gemm_slots=asyncio.Semaphore(settings.max_gemms),
        gemm_memory=gemm_memory,
        imports=Imports(places=asyncio.Semaphore(_MOST_IMPORTS)),
        events=EventFeed(store, engine.stopping.is_set),
        quality=quality,
        served=served,
        estimates=served.derived(Estimates.of),
        answer_cache=AnswerCache(served),
        stale=stale,
        metrics=metrics,
        signer=signer,
        watch=JobWatch(store, engine),
        shared=SharedWork(store),
    )


def _engine(store: Store, settings: Settings, metrics: Metrics) -> Engine:
    return RayEngine(settings) if settings.engine == "ray" else LocalEngine(store, settings, metrics)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    await run_in_threadpool(staging.settle_lost, service.store, leaving=False)
    await run_in_threadpool(service.engine.start)
    await run_in_threadpool(service.health.start)
    await run_in_threadpool(service.upkeep.start)
    yield
    await run_in_threadpool(service.upkeep.stop)
    await run_in_threadpool(service.engine.stop)
    await run_in_threadpool(service.health.stop)
    service.gemm_memory.close()
    service.served.close()
    service.shared.close()
    service.events.close()
    service.store.close()


def _open(settings: Settings, metrics: Metrics) -> Store:
    store = Store.open(settings.database_url, metrics.lock_wait.observe)
    try:
        before = store.schema_state()
        store.migrate()
        if before != "head":
            log.info("the database was %s; it has this release's schema now", before)
        access.check_exposure(settings, store)
    except (StoreError, access.Exposed):
        store.close()
        raise
    except SQLAlchemyError as error:
        store.close()
        raise unusable(error, "start the service again once that has passed") from error
    return store
