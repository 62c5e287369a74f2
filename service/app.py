"""``create_app``: wires settings, store, engine and routes; nothing is created at import."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from service import middleware, openapi, problems
from service.deps import Service
from service.engine import Engine
from service.routes import routers
from service.settings import Settings
from tilewright import __version__
from tuner.store.database import Store
from tuner.store.errors import StoreError

_DESCRIPTION = (
    "Tunes GEMM kernels on the devices of this machine, keeps every measurement, serves the winners."
)


def create_app(settings: Settings) -> FastAPI:
    """The service; its database is migrated and its devices start with it.

    Raises:
        StoreError: the database cannot be opened, or a newer release migrated it.
    """
    store = _open(settings)
    service = Service(
        settings, store, Engine(store, settings), threading.BoundedSemaphore(settings.max_gemms)
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(service.engine.start)
        yield
        await run_in_threadpool(service.engine.stop)
        store.close()

    app = FastAPI(title="tilewright", version=__version__, description=_DESCRIPTION, lifespan=lifespan)
    app.state.service = service
    app.add_middleware(middleware.BodyLimit, settings=settings)
    app.add_middleware(middleware.RequestId)
    for router in routers():
        app.include_router(router)
    problems.install(app)
    openapi.install(app)
    return app


def _open(settings: Settings) -> Store:
    store = Store.open(settings.database_url)
    try:
        store.migrate()
    except StoreError:
        store.close()
        raise
    return store
