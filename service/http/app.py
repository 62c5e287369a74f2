"""``create_app``: wires settings, store, engine and routes; nothing is created at import."""

from __future__ import annotations

import functools
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.concurrency import run_in_threadpool

from service.engine import gauges
from service.engine.engine import Engine
from service.engine.retune import StaleResults
from service.gemm.memory import GemmMemory
from service.http import access, errors, middleware, openapi
from service.http.conditional import InFlight
from service.http.deps import Service
from service.http.routes import routers
from service.metrics import Metrics
from service.results.quality import ResultQuality
from service.results.served import ServedSets
from service.settings import Settings
from tilewright import __version__
from tuner.store.database import Store, StoreError

_DESCRIPTION = (
    "Tunes GEMM kernels on the devices of this machine, keeps every measurement, serves the winners."
)

_LARGE_BODIES = {"/gemm": "max_body_bytes", "/trials": "max_import_bytes"}


def create_app(settings: Settings) -> FastAPI:
    """The service; its database is migrated and its devices start with it.

    Raises:
        StoreError: the database cannot be opened, or a newer release migrated it.
        Exposed: others than this machine would reach it, and no key guards it.
    """
    metrics = Metrics()
    service = _service(settings, _open(settings, metrics), metrics)
    app = FastAPI(
        title="tilewright",
        version=__version__,
        description=_DESCRIPTION,
        lifespan=_lifespan,
        redirect_slashes=False,
        dependencies=[Depends(access.authorize)],
    )
    app.state.service = service
    app.state.gate = access.Gate(service.store)
    app.add_middleware(middleware.BodyLimit, settings=settings, larger=_LARGE_BODIES)
    app.add_middleware(middleware.SameSite, settings=settings)
    app.add_middleware(middleware.RequestLog, metrics=service.metrics)
    app.add_middleware(middleware.RequestId)
    for router in routers():
        app.include_router(router)
    errors.install(app)
    openapi.install(app)
    return app


def _service(settings: Settings, store: Store, metrics: Metrics) -> Service:
    engine = Engine(store, settings, metrics)
    quality = ResultQuality(engine)
    metrics.watch(functools.partial(gauges.read, store, engine, quality))
    return Service(
        settings,
        store,
        engine,
        threading.BoundedSemaphore(settings.max_gemms),
        GemmMemory(settings.max_body_bytes),
        quality,
        ServedSets(store, quality),
        StaleResults(store, settings, quality.state),
        metrics,
        InFlight(),
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    await run_in_threadpool(service.engine.start)
    yield
    await run_in_threadpool(service.engine.stop)
    service.gemm_memory.close()
    service.served.close()
    service.store.close()


def _open(settings: Settings, metrics: Metrics) -> Store:
    store = Store.open(settings.database_url, metrics.lock_wait.observe)
    try:
        store.migrate()
        access.check_exposure(settings, store)
    except (StoreError, access.Exposed):
        store.close()
        raise
    return store
